#!/bin/sh
# Builds fio with its librpma engines, unmodified: build.sh SOURCE SYSROOT FIO
#
# SOURCE   fio's own source, unpacked; it is built in place
# SYSROOT  where the packages of the list `packages` are unpacked
# FIO      the binary, which runs with SYSROOT's libraries on LD_LIBRARY_PATH
set -eu
source="$1" sysroot="$2" fio="$3"
libraries="$sysroot/usr/lib/x86_64-linux-gnu"
# Debian 12 and 13 install libnl in different places. The libraries need it, and a host may lack it.
needed="$libraries:$sysroot/lib/x86_64-linux-gnu"
cd "$source"
# --disable-native: the binary also runs on the emulated processor of a virtual machine. What the engines do not need
# stays out, whether the host has it or not; there is no option for these two. With libpmem2 librpma_gpspm_server crashes.
hidden="$source/hidden"
mkdir -p "$hidden"
for header in libpmem2.h libpmemblk.h; do
    echo '#error "hidden from configure"' >"$hidden/$header"
done
LDFLAGS="-L$libraries -Wl,-rpath-link,$needed" ./configure --extra-cflags="-isystem $hidden -isystem $sysroot/usr/include" \
    --disable-native --disable-lex --disable-numa --disable-http --disable-gfapi --disable-rados --disable-rbd \
    --disable-libnfs --disable-libzbc --disable-tcmalloc --disable-xnvme --disable-dfs
for feature in CONFIG_LIBRPMA_APM CONFIG_LIBRPMA_GPSPM; do
    grep -q "^$feature=y" config-host.mak || { echo "configure leaves out $feature" >&2; exit 1; }
done
make -j2 fio
cp fio "$fio"
