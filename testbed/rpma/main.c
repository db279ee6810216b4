/*
 * Calls each function of librpma, with what it is made for and with what it must refuse, and says of each call whether
 * it did as its manual says. C11 with the extensions of GNU C, against librpma-dev:
 *
 *   rpma-check [--port N] [--pmem PATH] [--reference] ADDRESS
 *   rpma-check --end server|client [--port N] [--pmem PATH] [--many COUNT | --writes COUNT | --reads COUNT] ADDRESS
 *   rpma-check --threads clean|race [--port N] ADDRESS
 *   rpma-check --only PART [--port N] [--pmem PATH] [--reference] ADDRESS
 *
 * The second form is one of two processes, each of which may have another librpma: what goes over the wire is checked at
 * both ends; with --many, what COUNT connections cost a process; with --writes or --reads, so many for an instrument that
 * counts instructions. The third is for instruments that look for races: what programs do in several threads without one, or, to try the
 * instrument, with races of the program's own. The fourth is one part of the first, by the name of its function: forks, orders,
 * deletions ...
 *
 * ADDRESS is a local address; both ends of each connection are here. On an RDMA device any device's address does; a
 * librpma with other transports takes another. Ports from N (default 7400) to N + 15 must be free.
 *
 *   --pmem PATH  persistent memory for what is flushed persistently: a device-DAX or a file, of which 2 MiB are written
 *   --reference  the library is Debian's, over verbs: its descriptors are looked at to the byte, and what it is known to do
 *                wrong is skipped, by name and reason
 *
 * Which librpma is judged says LD_LIBRARY_PATH. The output is that of the Test Anything Protocol, with how often each
 * function was called, and the counts as the last line. Exit code 0: no check failed; 1: one did; 2: usage; 3: a check
 * on which the rest depends failed, or something took longer than it may.
 */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "cross.h"
#include "link.h"
#include "parts.h"
#include "peer.h"
#include "threads.h"

/* All of it, under valgrind on a busy machine. */
enum { ALL_SECONDS = 300 };

static _Noreturn void usage(void) {
    fputs("usage: rpma-check [--port N] [--pmem PATH] [--reference | --threads clean|race | --only PART |\n"
          "                  --end server|client [--many COUNT | --writes COUNT | --reads COUNT]] ADDRESS\n", stderr);
    exit(2);
}

static const struct part {
    const char *name;
    void (*run)(void);
} parts[] = {
#define PART(name) {#name, check_##name}
    /* First, when nothing is there yet. */
    PART(forks),       PART(strings),    PART(logging),   PART(devices), PART(configurations), PART(memory),
    PART(limits),      PART(descriptors), PART(orders),   PART(deletions), PART(idle),         PART(endings),
    PART(connecting),  PART(lives),      PART(arguments), PART(transfers), PART(messages),    PART(flushing),
    PART(errors),      PART(waiting),    PART(receive_queues), PART(ways),  PART(long_write), PART(peers),
    PART(process),
#undef PART
};

/* All of them, or the one of that name. */
static void run_parts(const char *only) {
    /* Over a device only by its name: librdmacm keeps the parent's device open in the child. */
    const char *transport = getenv("PMOF_TRANSPORT");
    bool are_forks_alone = options.reference || transport == NULL || strcmp(transport, "verbs") == 0;
    bool has_run = false;
    for (size_t number = 0; number < sizeof parts / sizeof *parts; number++) {
        const struct part *part = &parts[number];
        if (only != NULL ? strcmp(only, part->name) != 0 : part->run == check_forks && are_forks_alone)
            continue;
        part->run();
        has_run = true;
    }
    if (!has_run)
        usage();
}

pid_t start_peer(const char *port) {
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        bail_out("no other process");
    if (child > 0)
        return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* With what it forks. */
    setpgid(0, 0);
    /* The link itself can not be started under valgrind. */
    char program[4096], peer[] = "--peer", address[256], number[16];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0)
        _exit(127);
    program[length] = '\0';
    snprintf(address, sizeof address, "%s", options.address);
    snprintf(number, sizeof number, "%s", port);
    char *const arguments[] = {program, peer, number, address, NULL};
    execv(program, arguments);
    _exit(127);
}

int main(int count, char **arguments) {
    static const struct option known[] = {
        {"port", required_argument, NULL, 'p'}, {"pmem", required_argument, NULL, 'm'},
        {"reference", no_argument, NULL, 'r'},  {"peer", required_argument, NULL, 'P'},
        {"end", required_argument, NULL, 'e'},  {"many", required_argument, NULL, 'n'},
        {"writes", required_argument, NULL, 'w'}, {"reads", required_argument, NULL, 'R'},
        {"threads", required_argument, NULL, 't'}, {"only", required_argument, NULL, 'o'},
        {NULL, 0, NULL, 0},
    };
    const char *as_peer_of = NULL, *end = NULL, *threads = NULL, *only = NULL;
    unsigned many = 0, writes = 0, reads = 0;
    options.port = 7400;
    for (int option; (option = getopt_long(count, arguments, "", known, NULL)) != -1;) {
        switch (option) {
        case 'p': options.port = (unsigned)strtoul(optarg, NULL, 10); break;
        case 'm': options.pmem = optarg; break;
        case 'r': options.reference = true; break;
        case 'P': as_peer_of = optarg; break;
        case 'e': end = optarg; break;
        case 't': threads = optarg; break;
        case 'o': only = optarg; break;
        case 'R': reads = (unsigned)strtoul(optarg, NULL, 10); break;
        case 'w': writes = (unsigned)strtoul(optarg, NULL, 10); break;
        case 'n': many = (unsigned)strtoul(optarg, NULL, 10); break;
        default: usage();
        }
    }
    if (optind + 1 != count || options.port == 0 || options.port + PORTS > 65535)
        usage();
    options.address = arguments[optind];
    bail_out_after(ALL_SECONDS);
    if (as_peer_of != NULL)
        return be_peer(as_peer_of);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (only != NULL) {
        run_parts(only);
        return finish();
    }
    if (threads != NULL) {
        bool has_races = strcmp(threads, "race") == 0;
        if (!has_races && strcmp(threads, "clean") != 0)
            usage();
        (has_races ? race_threads : check_threads)();
        return finish();
    }
    if (end != NULL) {
        bool is_server = strcmp(end, "server") == 0;
        if (!is_server && strcmp(end, "client") != 0)
            usage();
        if (many > 0 && is_server)
            many_server(many);
        else if (many > 0)
            many_client(many);
        else if (writes + reads > 0 && is_server)
            cost_server();
        else if (writes + reads > 0)
            cost_client(writes, reads);
        else if (is_server)
            cross_server();
        else
            cross_client();
        return finish();
    }
    run_parts(NULL);
    check_calls();
    return finish();
}
