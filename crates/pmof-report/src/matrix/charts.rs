//! The table of charts, after the report of librpma's benchmarking framework: latency by block size; bandwidth by block size, threads
//! and depth; both under load on the target's CPU; and what replicas add.

use super::{
    Axis::{Depth, Load, Replicas, Size, Threads},
    Chart,
    Metric::{Bandwidth, Latency},
    Series,
};

const PLAIN: Series =
    Series { name: "auto", label: "auto", mode: "auto", medium: "tmpfs", options: "", transport: None, is_slow: false };

const CHART: Chart = Chart {
    name: "",
    title: "",
    fixed: "",
    metric: Latency,
    axis: Size,
    by_transport: false,
    options: "",
    series: &[PLAIN],
};

const FILE: Series = Series { name: "file", label: "auto, file", medium: "file", ..PLAIN };
const KEPT: Series =
    Series { name: "kept", label: "auto, memory declared kept", medium: "kept", is_slow: true, ..PLAIN };
const VISIBLE: Series = Series { name: "visible", label: "visible", mode: "visible", ..PLAIN };
const GPSPM: Series = Series { name: "gpspm", label: "gpspm", mode: "gpspm", ..PLAIN };
const APM: Series = Series { name: "apm", label: "apm", mode: "apm", ..PLAIN };
const NATIVE: Series = Series { name: "native", label: "native", mode: "native", ..PLAIN };
const READ_AFTER_SEND: Series =
    Series { name: "read-after-send", label: "read-after-send", mode: "read-after-send", ..PLAIN };
const RANDOM: Series =
    Series { name: "random", label: "auto, random places", options: "--rw randwrite", is_slow: true, ..PLAIN };
const RANDOM_READ: Series =
    Series { name: "random", label: "random places", options: "--rw randread", is_slow: true, ..PLAIN };
const RANDOM_MIX: Series =
    Series { name: "random", label: "random places", options: "--rw randrw", is_slow: true, ..PLAIN };
const READ: Series = Series { label: "in order", options: "--rw read", ..PLAIN };
const MIX: Series = Series { label: "in order", options: "--rw rw", ..PLAIN };
const READS: Series = Series { name: "read", label: "read", options: "--rw read", ..PLAIN };
const WRITES: Series = Series { name: "write", label: "write + flush", ..PLAIN };

pub(crate) const CHARTS: &[Chart] = &[
    Chart {
        name: "latency-write",
        title: "Latency of a durable write",
        fixed: "One write and its flush at a time, one connection, one replica.",
        by_transport: true,
        series: &[PLAIN, GPSPM, APM, NATIVE, READ_AFTER_SEND, VISIBLE, FILE, KEPT, RANDOM],
        ..CHART
    },
    Chart {
        name: "peers-memory",
        title: "Latency of a durable write beside what users have instead, in memory",
        fixed: "One write at a time, over a connection that stays open; ends that wait spin for 50 µs, then sleep. Servers of peers are Debian's, on the target's CPU.",
        options: "--waiting adaptive --peers",
        series: &[Series { name: "pmof", label: "pmof", transport: Some("tcp"), ..PLAIN }],
        ..CHART
    },
    Chart {
        name: "peers-file",
        title: "Latency of a durable write beside what users have instead, to a file",
        fixed: "One write at a time, over a connection that stays open; ends that wait spin for 50 µs, then sleep. Servers of peers are Debian's, on the target's CPU.",
        options: "--waiting adaptive --peers",
        series: &[Series { name: "pmof", label: "pmof", transport: Some("tcp"), ..FILE }],
        ..CHART
    },
    Chart {
        name: "peers-verbs",
        title: "Latency of a durable write over verbs beside librpma",
        fixed: "One write and its flush at a time; both ends spin. librpma is Debian's under fio's APM engines, whose server has the bytes in anonymous memory.",
        options: "--peers=librpma",
        series: &[Series { name: "pmof", label: "pmof", transport: Some("verbs"), ..PLAIN }],
        ..CHART
    },
    Chart {
        name: "latency-read",
        title: "Latency of a read",
        fixed: "One read at a time, one connection, from memory.",
        series: &[READ, RANDOM_READ],
        ..CHART
    },
    Chart {
        name: "latency-mix",
        title: "Latency of a mix: 70 % reads, 30 % durable writes",
        fixed: "One operation at a time, one connection, in memory.",
        options: "--rwmixread 70",
        series: &[MIX, RANDOM_MIX],
        ..CHART
    },
    Chart {
        name: "bandwidth-write",
        title: "Bandwidth of writes by block size",
        fixed: "16 in flight on one connection.",
        metric: Bandwidth,
        by_transport: true,
        options: "--depth 16",
        series: &[
            Series { name: "stream", label: "auto, one flush a round", ..PLAIN },
            Series { name: "each", label: "auto, each write flushed", options: "--batch 1", ..PLAIN },
            Series { name: "file", label: "auto, file, each write flushed", options: "--batch 1", ..FILE },
        ],
        ..CHART
    },
    Chart {
        name: "bandwidth-read",
        title: "Bandwidth of reads by block size",
        fixed: "16 in flight on one connection, from memory.",
        metric: Bandwidth,
        options: "--depth 16",
        series: &[READ, RANDOM_READ],
        ..CHART
    },
    Chart {
        name: "bandwidth-mix",
        title: "Bandwidth of a mix: 70 % reads, 30 % durable writes",
        fixed: "16 in flight on one connection, in memory.",
        metric: Bandwidth,
        options: "--depth 16 --batch 1 --rwmixread 70",
        series: &[MIX, RANDOM_MIX],
        ..CHART
    },
    Chart {
        name: "bandwidth-threads",
        title: "Bandwidth by threads",
        fixed: "4 KiB, 2 in flight on a connection for each thread, in memory.",
        metric: Bandwidth,
        axis: Threads,
        options: "--size 4096 --depth 2 --batch 1",
        series: &[WRITES, READS],
        ..CHART
    },
    Chart {
        name: "bandwidth-depth",
        title: "Bandwidth by operations in flight",
        fixed: "4 KiB, one connection, in memory.",
        metric: Bandwidth,
        axis: Depth,
        options: "--size 4096 --batch 1",
        series: &[WRITES, READS],
        ..CHART
    },
    Chart {
        name: "latency-load",
        title: "Latency under load on the target's CPU",
        fixed: "4 KiB, one write and its flush (or read) at a time; another process takes the target's CPU.",
        axis: Load,
        options: "--size 4096",
        series: &[WRITES, READS],
        ..CHART
    },
    Chart {
        name: "bandwidth-load",
        title: "Bandwidth under load on the target's CPU",
        fixed: "64 KiB, 16 in flight on one connection; another process takes the target's CPU.",
        metric: Bandwidth,
        axis: Load,
        options: "--size 65536 --depth 16 --batch 1",
        series: &[WRITES, READS],
        ..CHART
    },
    Chart {
        name: "latency-replicas",
        title: "Latency of a durable write by replicas",
        fixed: "4 KiB, one write and its flush at a time; all replicas at one target.",
        axis: Replicas,
        options: "--size 4096",
        series: &[
            PLAIN,
            FILE,
            Series {
                name: "delayed",
                label: "auto, 200 µs of delay each way",
                options: "--delay 200us",
                transport: Some("tcp"),
                ..PLAIN
            },
        ],
        ..CHART
    },
];
