/* The limit of locked memory. */
#include <linux/capability.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "link.h"
#include "parts.h"

enum { LIMIT_BYTES = 64 * 1024, BYTES = 4 * 1024 * 1024 };

/* The last error that was logged. */
static char told[1024];

static void note_error(enum rpma_log_level level, const char *file, const int line, const char *function,
                       const char *format, ...) {
    (void)file, (void)line, (void)function;
    if (level > RPMA_LOG_LEVEL_ERROR)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(told, sizeof told, format, arguments);
    va_end(arguments);
}

/* A registration that a thread of its own asks for. */
struct asked {
    struct rpma_peer *peer;
    void *memory;
    struct rpma_mr_local *registered;
    int returned;
};

/*
 * Without the right to lock any amount of memory. A thread that gives a right up, even if it takes it back, has other
 * credentials than the one that opened the device, and the kernel refuses to take its requests from then on.
 */
static void *register_without_right(void *argument) {
    struct asked *asked = argument;
    struct __user_cap_header_struct this_thread = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    struct __user_cap_data_struct rights[_LINUX_CAPABILITY_U32S_3];
    if (syscall(SYS_capget, &this_thread, rights) != 0)
        bail_out("no capabilities");
    rights[0].effective &= ~(1U << CAP_IPC_LOCK);
    if (syscall(SYS_capset, &this_thread, rights) != 0)
        bail_out("CAP_IPC_LOCK stays");
    asked->returned = CALL(rpma_mr_reg)(asked->peer, asked->memory, BYTES, RPMA_MR_USAGE_READ_SRC, &asked->registered);
    return NULL;
}

void check_limits(void) {
    section("limits");
    struct rpma_peer *peer = new_peer();
    struct rpma_mr_local *const untouched = (struct rpma_mr_local *)&options, *registered = untouched;
    struct rlimit limit, low;
    void *memory = NULL;
    if (posix_memalign(&memory, (size_t)sysconf(_SC_PAGESIZE), BYTES) != 0 || getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        bail_out("no memory, or no limit of locked memory");
    memset(memory, 0, BYTES);
    NEED(CALL(rpma_log_set_function)(note_error));
    told[0] = '\0';
    low = (struct rlimit){.rlim_cur = LIMIT_BYTES, .rlim_max = limit.rlim_max};
    if (setrlimit(RLIMIT_MEMLOCK, &low) != 0)
        bail_out("the limit of locked memory stays");
    struct asked asked = {.peer = peer, .memory = memory, .registered = untouched};
    pthread_t thread;
    if (pthread_create(&thread, NULL, register_without_right, &asked) != 0)
        bail_out("no thread");
    pthread_join(thread, NULL);
    int returned = asked.returned;
    registered = asked.registered;
    setrlimit(RLIMIT_MEMLOCK, &limit);
    NEED(CALL(rpma_log_set_function)(NULL));

    if (!is_device()) {
        /* No device, so nothing is locked. */
        check_code(returned, 0, "rpma_mr_reg beyond the limit of locked memory is 0 without a device");
        IS(CALL(rpma_mr_dereg)(&registered), 0);
    } else {
        check_code(returned, RPMA_E_PROVIDER, "rpma_mr_reg beyond the limit of locked memory is RPMA_E_PROVIDER");
        check(registered == untouched, "it leaves the registration as it was");
        tell("%s", told);
        const char *advice = "the log says how to raise the limit of locked memory";
        if (options.reference)
            skip("librpma gives only the error number", "%s", advice);
        else
            check(strstr(told, "ulimit -l") != NULL, "%s", advice);
    }
    registered = NULL;
    IS(CALL(rpma_mr_reg)(peer, memory, BYTES, RPMA_MR_USAGE_READ_SRC, &registered), 0);
    IS(CALL(rpma_mr_dereg)(&registered), 0);
    delete_peer(&peer);
    free(memory);
}

/* A write that the library posts in parts completes as one. */
void check_long_write(void) {
    section("a write of more than 1 GiB");
    enum { MORE = 4096 };
    const size_t bytes = ((size_t)1 << 30) + MORE;
    if (is_device()) {
        skip("a device would have all of it pinned", "it completes as one");
        return;
    }
    struct link link;
    struct rpma_mr_local *local = NULL;
    struct rpma_mr_remote *remote = NULL;
    unsigned char descriptor[64];
    size_t size = 0;
    struct ibv_wc completion = {.byte_len = 0};
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        bail_out("no memory");
    open_link(&link, NULL, NULL);
    NEED(CALL(rpma_mr_reg)(link.peer, memory, bytes, RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_WRITE_DST, &local));
    NEED(CALL(rpma_mr_get_descriptor_size)(local, &size));
    NEED(CALL(rpma_mr_get_descriptor)(local, descriptor));
    NEED(CALL(rpma_mr_remote_from_descriptor)(descriptor, size, &remote));
    NEED(CALL(rpma_write)(link.client.connection, remote, 0, local, 0, bytes, RPMA_F_COMPLETION_ALWAYS, REQUEST(1)));
    bool has_come = false;
    for (int attempt = 0; attempt < 6 && !has_come; attempt++)
        has_come = next_completion(link.client.cq, &completion);
    check(has_come && completion.status == IBV_WC_SUCCESS && completion.wr_id == 1, "it completes");
    check(completion.byte_len == bytes, "with the length of the whole");
    tell("%u bytes", completion.byte_len);
    NEED(CALL(rpma_mr_remote_delete)(&remote));
    NEED(CALL(rpma_mr_dereg)(&local));
    close_link(&link);
    munmap(memory, bytes);
}
