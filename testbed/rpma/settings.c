/* What needs no connection: strings, logging, devices, configurations. */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "link.h"
#include "parts.h"

static bool distinct(const char *const *texts, int count) {
    for (int one = 0; one < count; one++) {
        if (texts[one] == NULL || texts[one][0] == '\0')
            return false;
        for (int other = 0; other < one; other++)
            if (strcmp(texts[one], texts[other]) == 0)
                return false;
    }
    return true;
}

void check_strings(void) {
    section("strings");
    static const int errors[] = {RPMA_E_UNKNOWN, RPMA_E_NOSUPP, RPMA_E_PROVIDER, RPMA_E_NOMEM,
                                 RPMA_E_INVAL, RPMA_E_NO_COMPLETION, RPMA_E_NO_EVENT, RPMA_E_AGAIN,
                                 RPMA_E_SHARED_CHANNEL, RPMA_E_NOT_SHARED_CHNL, 0};
    enum { ERRORS = sizeof errors / sizeof *errors };
    const char *texts[ERRORS];
    for (int error = 0; error < ERRORS; error++) {
        texts[error] = CALL(rpma_err_2str)(errors[error]);
        tell("%d: %s", errors[error], texts[error]);
    }
    check(distinct(texts, ERRORS), "every error code and success has a text of its own");
    for (int code = 1; code >= -1; code -= 2) {
        const char *text = CALL(rpma_err_2str)(code);
        check(text != NULL && text[0] != '\0', "the code %d has a text", code);
    }
    enum { EVENTS = RPMA_CONN_UNREACHABLE - RPMA_CONN_UNDEFINED + 1 };
    const char *events[EVENTS];
    for (int event = 0; event < EVENTS; event++) {
        events[event] = CALL(rpma_utils_conn_event_2str)((enum rpma_conn_event)(event + RPMA_CONN_UNDEFINED));
        tell("%d: %s", event + RPMA_CONN_UNDEFINED, events[event]);
    }
    check(distinct(events, EVENTS), "every event has a text of its own");
    const char *unknown = CALL(rpma_utils_conn_event_2str)((enum rpma_conn_event)77);
    check(unknown != NULL && unknown[0] != '\0', "an unknown event has a text");
}

static struct {
    unsigned messages;
    enum rpma_log_level level;
    bool place;
    char text[1024];
} logged;

static void note_message(enum rpma_log_level level, const char *file, const int line, const char *function,
                         const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(logged.text, sizeof logged.text, format, arguments);
    va_end(arguments);
    logged.level = level;
    /* Without a file there is no line and no function. */
    logged.place = file == NULL || (file[0] != '\0' && line > 0 && function != NULL && function[0] != '\0');
    logged.messages++;
}

/* Something that fails, and has a reason to tell. */
static void fail_with_message(void) {
    struct ibv_context *none = NULL;
    (void)CALL(rpma_utils_get_ibv_context)(NO_SUCH_NAME, RPMA_UTIL_IBV_CONTEXT_LOCAL, &none);
}

/* How many bytes the default function writes to standard error for a failing call. */
static long default_function_writes(void) {
    FILE *file = tmpfile();
    int kept = dup(STDERR_FILENO);
    if (file == NULL || kept < 0)
        bail_out("no temporary file");
    fflush(stderr);
    dup2(fileno(file), STDERR_FILENO);
    fail_with_message();
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    long bytes = lseek(fileno(file), 0, SEEK_END);
    fclose(file);
    return bytes;
}

void check_logging(void) {
    section("logging");
    enum rpma_log_level level = RPMA_LOG_LEVEL_DEBUG;
    IS(CALL(rpma_log_get_threshold)(RPMA_LOG_THRESHOLD, &level), 0);
    check(level == RPMA_LOG_LEVEL_WARNING, "the main threshold is at first that of warnings");
    IS(CALL(rpma_log_get_threshold)(RPMA_LOG_THRESHOLD_AUX, &level), 0);
    check(level == RPMA_LOG_DISABLED, "the auxiliary threshold is at first disabled");
    IS(CALL(rpma_log_get_threshold)(RPMA_LOG_THRESHOLD_MAX, &level), RPMA_E_INVAL);
    IS(CALL(rpma_log_get_threshold)((enum rpma_log_threshold)-1, &level), RPMA_E_INVAL);
    IS(CALL(rpma_log_get_threshold)(RPMA_LOG_THRESHOLD, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_log_set_threshold)(RPMA_LOG_THRESHOLD_MAX, RPMA_LOG_LEVEL_INFO), RPMA_E_INVAL);
    IS(CALL(rpma_log_set_threshold)((enum rpma_log_threshold)-1, RPMA_LOG_LEVEL_INFO), RPMA_E_INVAL);
    IS(CALL(rpma_log_set_threshold)(RPMA_LOG_THRESHOLD, (enum rpma_log_level)-2), RPMA_E_INVAL);
    IS(CALL(rpma_log_set_threshold)(RPMA_LOG_THRESHOLD, (enum rpma_log_level)6), RPMA_E_INVAL);
    for (int each = RPMA_LOG_DISABLED; each <= RPMA_LOG_LEVEL_DEBUG; each++) {
        bool kept = CALL(rpma_log_set_threshold)(RPMA_LOG_THRESHOLD_AUX, (enum rpma_log_level)each) == 0 &&
                    CALL(rpma_log_get_threshold)(RPMA_LOG_THRESHOLD_AUX, &level) == 0 && (int)level == each;
        check(kept, "the threshold %d is kept", each);
    }
    IS(CALL(rpma_log_set_threshold)(RPMA_LOG_THRESHOLD_AUX, RPMA_LOG_DISABLED), 0);
    check(default_function_writes() == 0, "nothing goes to standard error while the auxiliary threshold is disabled");
    IS(CALL(rpma_log_set_threshold)(RPMA_LOG_THRESHOLD_AUX, RPMA_LOG_LEVEL_ERROR), 0);
    check(default_function_writes() > 0, "an error goes to standard error where the auxiliary threshold lets it");
    IS(CALL(rpma_log_set_threshold)(RPMA_LOG_THRESHOLD_AUX, RPMA_LOG_DISABLED), 0);

    IS(CALL(rpma_log_set_function)(note_message), 0);
    fail_with_message();
    check(logged.messages > 0 && logged.level <= RPMA_LOG_LEVEL_ERROR, "a function of one's own gets an error");
    check(logged.text[0] != '\0' && strchr(logged.text, '%') == NULL, "its format and arguments make a text");
    check(logged.place, "file, line and function come together");
    tell("%s", logged.text);
    IS(CALL(rpma_log_set_threshold)(RPMA_LOG_THRESHOLD, RPMA_LOG_LEVEL_FATAL), 0);
    logged.messages = 0;
    fail_with_message();
    check(logged.messages == 0, "the main threshold keeps errors from it");
    IS(CALL(rpma_log_set_threshold)(RPMA_LOG_THRESHOLD, RPMA_LOG_DISABLED), 0);
    fail_with_message();
    check(logged.messages == 0, "so does a disabled threshold");
    IS(CALL(rpma_log_set_threshold)(RPMA_LOG_THRESHOLD, RPMA_LOG_LEVEL_WARNING), 0);
    IS(CALL(rpma_log_set_function)(NULL), 0);
    fail_with_message();
    check(logged.messages == 0, "NULL brings the default function back");
}

void check_devices(void) {
    section("devices");
    struct ibv_context *const untouched = (struct ibv_context *)&options, *found = untouched;
    int capable = -1;
    IS(CALL(rpma_utils_get_ibv_context)(NULL, RPMA_UTIL_IBV_CONTEXT_LOCAL, &found), RPMA_E_INVAL);
    IS(CALL(rpma_utils_get_ibv_context)(options.address, RPMA_UTIL_IBV_CONTEXT_LOCAL, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_utils_get_ibv_context)(options.address, (enum rpma_util_ibv_context_type)2, &found), RPMA_E_INVAL);
    IS(CALL(rpma_utils_get_ibv_context)(NO_SUCH_NAME, RPMA_UTIL_IBV_CONTEXT_LOCAL, &found), RPMA_E_PROVIDER);
    IS(CALL(rpma_utils_get_ibv_context)(NO_SUCH_NAME, RPMA_UTIL_IBV_CONTEXT_REMOTE, &found), RPMA_E_PROVIDER);
    IS(CALL(rpma_utils_get_ibv_context)("", RPMA_UTIL_IBV_CONTEXT_LOCAL, &found), RPMA_E_PROVIDER);
    IS(CALL(rpma_utils_get_ibv_context)(FOREIGN_ADDRESS, RPMA_UTIL_IBV_CONTEXT_LOCAL, &found), RPMA_E_PROVIDER);
    check(found == untouched, "a failure leaves the context as it was");
    IS(CALL(rpma_utils_get_ibv_context)(options.address, RPMA_UTIL_IBV_CONTEXT_REMOTE, &found), 0);
    check(found != NULL && found != untouched, "a remote address has a context");
    IS(CALL(rpma_utils_get_ibv_context)(options.address, RPMA_UTIL_IBV_CONTEXT_LOCAL, &found), 0);
    check(found != NULL && found == context(), "a local address has the same one each time");
    IS(CALL(rpma_utils_ibv_context_is_odp_capable)(NULL, &capable), RPMA_E_INVAL);
    IS(CALL(rpma_utils_ibv_context_is_odp_capable)(found, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_utils_ibv_context_is_odp_capable)(found, &capable), 0);
    check(capable == 0 || capable == 1, "on-demand paging is there or not");
    tell("on-demand paging: %d", capable);

    struct rpma_peer *peer = NULL, *second = NULL;
    IS(CALL(rpma_peer_new)(NULL, &peer), RPMA_E_INVAL);
    IS(CALL(rpma_peer_new)(found, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_peer_new)(found, &peer), 0);
    IS(CALL(rpma_peer_new)(found, &second), 0);
    check(peer != NULL && second != NULL && peer != second, "two peers on one device");
    IS(CALL(rpma_peer_delete)(NULL), RPMA_E_INVAL);
    if (options.reference) {
        skip("librpma frees the peer all the same, and its protection domain stays", "a peer with registered memory stays");
    } else {
        static char memory[4096];
        struct rpma_mr_local *registered = NULL;
        NEED(CALL(rpma_mr_reg)(peer, memory, sizeof memory, RPMA_MR_USAGE_READ_SRC, &registered));
        IS(CALL(rpma_peer_delete)(&peer), RPMA_E_PROVIDER);
        check(peer != NULL, "a peer with registered memory stays");
        NEED(CALL(rpma_mr_dereg)(&registered));
    }
    IS(CALL(rpma_peer_delete)(&peer), 0);
    check(peer == NULL, "a deleted peer is NULL");
    IS(CALL(rpma_peer_delete)(&peer), 0);
    IS(CALL(rpma_peer_delete)(&second), 0);
}

static void check_peer_configuration(void) {
    section("peer configuration");
    struct rpma_peer_cfg *configuration = NULL, *copy = NULL;
    bool supported = true;
    size_t size = 0;
    unsigned char descriptor[64];
    IS(CALL(rpma_peer_cfg_new)(NULL), RPMA_E_INVAL);
    NEED(CALL(rpma_peer_cfg_new)(&configuration));
    IS(CALL(rpma_peer_cfg_get_direct_write_to_pmem)(configuration, &supported), 0);
    check(!supported, "nothing is claimed at first");
    IS(CALL(rpma_peer_cfg_get_direct_write_to_pmem)(NULL, &supported), RPMA_E_INVAL);
    IS(CALL(rpma_peer_cfg_get_direct_write_to_pmem)(configuration, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_peer_cfg_set_direct_write_to_pmem)(NULL, true), RPMA_E_INVAL);
    IS(CALL(rpma_peer_cfg_get_descriptor_size)(NULL, &size), RPMA_E_INVAL);
    IS(CALL(rpma_peer_cfg_get_descriptor_size)(configuration, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_peer_cfg_get_descriptor_size)(configuration, &size), 0);
    check(size == 1, "its descriptor is one byte");
    IS(CALL(rpma_peer_cfg_get_descriptor)(NULL, descriptor), RPMA_E_INVAL);
    IS(CALL(rpma_peer_cfg_get_descriptor)(configuration, NULL), RPMA_E_INVAL);
    for (int claim = 0; claim <= 1; claim++) {
        IS(CALL(rpma_peer_cfg_set_direct_write_to_pmem)(configuration, claim != 0), 0);
        IS(CALL(rpma_peer_cfg_get_descriptor)(configuration, descriptor), 0);
        check(descriptor[0] == claim, "the byte is %d", claim);
        IS(CALL(rpma_peer_cfg_from_descriptor)(descriptor, size, &copy), 0);
        supported = claim == 0;
        IS(CALL(rpma_peer_cfg_get_direct_write_to_pmem)(copy, &supported), 0);
        check(supported == (claim != 0), "the claim %d comes through a descriptor", claim);
        IS(CALL(rpma_peer_cfg_delete)(&copy), 0);
    }
    IS(CALL(rpma_peer_cfg_from_descriptor)(NULL, size, &copy), RPMA_E_INVAL);
    IS(CALL(rpma_peer_cfg_from_descriptor)(descriptor, size, NULL), RPMA_E_INVAL);
    IS_UNLESS_REFERENCE("librpma does not look at the size", CALL(rpma_peer_cfg_from_descriptor)(descriptor, 0, &copy),
                        RPMA_E_INVAL);
    memset(descriptor, 0xff, sizeof descriptor);
    int returned = CALL(rpma_peer_cfg_from_descriptor)(descriptor, 1, &copy);
    supported = false;
    check(returned == RPMA_E_INVAL || (returned == 0 && copy != NULL &&
          CALL(rpma_peer_cfg_get_direct_write_to_pmem)(copy, &supported) == 0),
          "a descriptor that is no bool is refused or read as one");
    tell("descriptor 0xff: %d, claim %d", returned, supported);
    IS(CALL(rpma_peer_cfg_delete)(&copy), 0);
    IS(CALL(rpma_peer_cfg_delete)(NULL), RPMA_E_INVAL);
    IS(CALL(rpma_peer_cfg_delete)(&configuration), 0);
    check(configuration == NULL, "a deleted configuration is NULL");
    IS(CALL(rpma_peer_cfg_delete)(&configuration), 0);
}

/* One setting of a configuration whose value is a u32: what it is at first, what it becomes, what is refused. */
#define CHECK_SIZE(object, setting, configuration, first)                                                            \
    do {                                                                                                             \
        uint32_t value = 77;                                                                                         \
        IS(CALL(rpma_##object##_get_##setting)(configuration, &value), 0);                                           \
        if (!check(value == (first), #object " " #setting " is at first %u", (unsigned)(first)))                     \
            tell("it is %u", value);                                                                                 \
        IS(CALL(rpma_##object##_set_##setting)(configuration, 23), 0);                                               \
        IS(CALL(rpma_##object##_get_##setting)(configuration, &value), 0);                                           \
        check(value == 23, #object " " #setting " keeps what is set");                                               \
        IS(CALL(rpma_##object##_set_##setting)(configuration, UINT32_MAX), 0);                                       \
        IS(CALL(rpma_##object##_get_##setting)(configuration, &value), 0);                                           \
        check(value == UINT32_MAX, #object " " #setting " keeps even the largest");                                  \
        IS(CALL(rpma_##object##_set_##setting)(configuration, 0), 0);                                                \
        IS(CALL(rpma_##object##_get_##setting)(configuration, &value), 0);                                           \
        check(value == 0, #object " " #setting " may be 0");                                                         \
        IS(CALL(rpma_##object##_set_##setting)(NULL, 1), RPMA_E_INVAL);                                              \
        IS(CALL(rpma_##object##_get_##setting)(NULL, &value), RPMA_E_INVAL);                                         \
        IS(CALL(rpma_##object##_get_##setting)(configuration, NULL), RPMA_E_INVAL);                                  \
    } while (0)

static void check_connection_configuration(void) {
    section("connection configuration");
    struct rpma_conn_cfg *configuration = NULL;
    int timeout_ms = 0;
    bool shared = true;
    struct rpma_srq *queue = (struct rpma_srq *)&options;
    IS(CALL(rpma_conn_cfg_new)(NULL), RPMA_E_INVAL);
    NEED(CALL(rpma_conn_cfg_new)(&configuration));
    IS(CALL(rpma_conn_cfg_get_timeout)(configuration, &timeout_ms), 0);
    check(timeout_ms == RPMA_DEFAULT_TIMEOUT_MS, "the timeout is at first the documented one");
    IS(CALL(rpma_conn_cfg_set_timeout)(configuration, -1), RPMA_E_INVAL);
    IS(CALL(rpma_conn_cfg_set_timeout)(configuration, INT_MIN), RPMA_E_INVAL);
    IS(CALL(rpma_conn_cfg_set_timeout)(NULL, 1), RPMA_E_INVAL);
    IS(CALL(rpma_conn_cfg_set_timeout)(configuration, 0), 0);
    IS(CALL(rpma_conn_cfg_set_timeout)(configuration, INT_MAX), 0);
    IS(CALL(rpma_conn_cfg_get_timeout)(configuration, &timeout_ms), 0);
    check(timeout_ms == INT_MAX, "the timeout is kept");
    IS(CALL(rpma_conn_cfg_get_timeout)(NULL, &timeout_ms), RPMA_E_INVAL);
    IS(CALL(rpma_conn_cfg_get_timeout)(configuration, NULL), RPMA_E_INVAL);
    CHECK_SIZE(conn_cfg, cq_size, configuration, 10);
    CHECK_SIZE(conn_cfg, rcq_size, configuration, 0);
    CHECK_SIZE(conn_cfg, sq_size, configuration, 10);
    CHECK_SIZE(conn_cfg, rq_size, configuration, 10);
    IS(CALL(rpma_conn_cfg_get_compl_channel)(configuration, &shared), 0);
    check(!shared, "the completion channel is at first not shared");
    IS(CALL(rpma_conn_cfg_set_compl_channel)(configuration, true), 0);
    IS(CALL(rpma_conn_cfg_get_compl_channel)(configuration, &shared), 0);
    check(shared, "a shared completion channel is kept");
    IS(CALL(rpma_conn_cfg_set_compl_channel)(NULL, true), RPMA_E_INVAL);
    IS(CALL(rpma_conn_cfg_get_compl_channel)(NULL, &shared), RPMA_E_INVAL);
    IS(CALL(rpma_conn_cfg_get_compl_channel)(configuration, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_conn_cfg_get_srq)(configuration, &queue), 0);
    check(queue == NULL, "there is no shared receive queue at first");
    IS(CALL(rpma_conn_cfg_get_srq)(NULL, &queue), RPMA_E_INVAL);
    IS(CALL(rpma_conn_cfg_get_srq)(configuration, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_conn_cfg_set_srq)(NULL, (struct rpma_srq *)&options), RPMA_E_INVAL);
    IS(CALL(rpma_conn_cfg_set_srq)(configuration, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_conn_cfg_delete)(NULL), RPMA_E_INVAL);
    IS(CALL(rpma_conn_cfg_delete)(&configuration), 0);
    check(configuration == NULL, "a deleted configuration is NULL");
    IS(CALL(rpma_conn_cfg_delete)(&configuration), 0);
}

void check_configurations(void) {
    check_peer_configuration();
    check_connection_configuration();
    section("configuration of shared receive queues");
    struct rpma_srq_cfg *configuration = NULL;
    IS(CALL(rpma_srq_cfg_new)(NULL), RPMA_E_INVAL);
    NEED(CALL(rpma_srq_cfg_new)(&configuration));
    /* The manual of librpma 1.3.0 says 100; the library has 20. */
    uint32_t documented = options.reference ? 20 : 100;
    CHECK_SIZE(srq_cfg, rq_size, configuration, documented);
    CHECK_SIZE(srq_cfg, rcq_size, configuration, documented);
    IS(CALL(rpma_srq_cfg_delete)(NULL), RPMA_E_INVAL);
    IS(CALL(rpma_srq_cfg_delete)(&configuration), 0);
    check(configuration == NULL, "a deleted configuration is NULL");
    IS(CALL(rpma_srq_cfg_delete)(&configuration), 0);
}
