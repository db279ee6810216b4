/* Memory: registration, descriptors, advice. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "link.h"
#include "parts.h"

enum {
    ALL_USAGES = 0xff,
    DESCRIPTOR_BYTES = 21,
    /* What programs keep free for this one and a peer configuration's together: librpma's examples 24. */
    DESCRIPTORS_BYTES = 22,
    BYTES = 8192,
};

static void check_registration(struct rpma_peer *peer, void *memory) {
    section("registration");
    struct rpma_mr_local *const untouched = (struct rpma_mr_local *)&options, *registered = untouched;
    IS(CALL(rpma_mr_reg)(NULL, memory, BYTES, RPMA_MR_USAGE_READ_SRC, &registered), RPMA_E_INVAL);
    IS(CALL(rpma_mr_reg)(peer, NULL, BYTES, RPMA_MR_USAGE_READ_SRC, &registered), RPMA_E_INVAL);
    IS(CALL(rpma_mr_reg)(peer, memory, 0, RPMA_MR_USAGE_READ_SRC, &registered), RPMA_E_INVAL);
    IS(CALL(rpma_mr_reg)(peer, memory, BYTES, 0, &registered), RPMA_E_INVAL);
    IS(CALL(rpma_mr_reg)(peer, memory, BYTES, ALL_USAGES + 1, &registered), RPMA_E_INVAL);
    IS(CALL(rpma_mr_reg)(peer, memory, BYTES, RPMA_MR_USAGE_READ_SRC | 0x40000000, &registered), RPMA_E_INVAL);
    IS(CALL(rpma_mr_reg)(peer, memory, BYTES, -1, &registered), RPMA_E_INVAL);
    IS(CALL(rpma_mr_reg)(peer, memory, BYTES, RPMA_MR_USAGE_READ_SRC, NULL), RPMA_E_INVAL);
    check(registered == untouched, "a failure leaves the registration as it was");
    for (int bit = 0; bit < 8; bit++) {
        registered = NULL;
        if (options.reference && 1 << bit == RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT) {
            skip("soft-RoCE refuses ordinary memory for persistent flushes, and librpma passes that on",
                 "the usage of bit %d can be registered", bit);
            continue;
        }
        int returned = CALL(rpma_mr_reg)(peer, memory, BYTES, 1 << bit, &registered);
        if (!check(returned == 0 && registered != NULL, "the usage of bit %d can be registered", bit))
            tell("returned %d", returned);
        if (returned == 0)
            NEED(CALL(rpma_mr_dereg)(&registered));
    }
    IS(CALL(rpma_mr_reg)(peer, (char *)memory + 3, 1, RPMA_MR_USAGE_READ_SRC, &registered), 0);
    void *start = NULL;
    size_t size = 0;
    IS(CALL(rpma_mr_get_ptr)(registered, &start), 0);
    IS(CALL(rpma_mr_get_size)(registered, &size), 0);
    check(start == (char *)memory + 3 && size == 1, "one byte at an odd address is registered as it is");
    IS(CALL(rpma_mr_get_ptr)(NULL, &start), RPMA_E_INVAL);
    IS(CALL(rpma_mr_get_ptr)(registered, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_mr_get_size)(NULL, &size), RPMA_E_INVAL);
    IS(CALL(rpma_mr_get_size)(registered, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_mr_dereg)(NULL), RPMA_E_INVAL);
    IS(CALL(rpma_mr_dereg)(&registered), 0);
    check(registered == NULL, "a registration that has ended is NULL");
    IS(CALL(rpma_mr_dereg)(&registered), 0);
}

static uint64_t little_endian(const unsigned char *bytes, int count) {
    uint64_t value = 0;
    for (int byte = count; byte-- > 0;)
        value = value << 8 | bytes[byte];
    return value;
}

static void check_memory_descriptors(struct rpma_peer *peer, unsigned char *memory) {
    section("descriptors");
    enum { USAGE = RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY };
    struct rpma_mr_local *registered = NULL;
    unsigned char descriptor[256], changed[256];
    size_t size = 0;
    memset(descriptor, 0x5a, sizeof descriptor);
    NEED(CALL(rpma_mr_reg)(peer, memory, BYTES, USAGE, &registered));
    IS(CALL(rpma_mr_get_descriptor_size)(NULL, &size), RPMA_E_INVAL);
    IS(CALL(rpma_mr_get_descriptor_size)(registered, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_mr_get_descriptor_size)(registered, &size), 0);
    tell("a descriptor has %zu bytes", size);
    if (!check(size == DESCRIPTOR_BYTES, "it is 21 bytes"))
        bail_out("programs keep no more free");
    struct rpma_peer_cfg *claim = NULL;
    size_t claim_size = 0;
    NEED(CALL(rpma_peer_cfg_new)(&claim));
    NEED(CALL(rpma_peer_cfg_get_descriptor_size)(claim, &claim_size));
    check(size + claim_size <= DESCRIPTORS_BYTES, "both descriptors have 22 bytes");
    NEED(CALL(rpma_peer_cfg_delete)(&claim));
    IS(CALL(rpma_mr_get_descriptor)(NULL, descriptor), RPMA_E_INVAL);
    IS(CALL(rpma_mr_get_descriptor)(registered, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_mr_get_descriptor)(registered, descriptor), 0);
    check(descriptor[size] == 0x5a, "nothing is written beyond it");
    if (options.reference) {
        check(little_endian(descriptor, 8) == (uintptr_t)memory, "first the address");
        check(little_endian(descriptor + 8, 8) == BYTES, "then the length");
        check(little_endian(descriptor + 16, 4) != 0, "then the key");
        check(descriptor[20] == USAGE, "then the usage");
    }

    struct rpma_mr_remote *remote = NULL;
    size_t remote_size = 0;
    int flush = 0;
    IS(CALL(rpma_mr_remote_from_descriptor)(NULL, size, &remote), RPMA_E_INVAL);
    IS(CALL(rpma_mr_remote_from_descriptor)(descriptor, size, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_mr_remote_from_descriptor)(descriptor, 0, &remote), RPMA_E_INVAL);
    IS(CALL(rpma_mr_remote_from_descriptor)(descriptor, 1, &remote), RPMA_E_INVAL);
    IS(CALL(rpma_mr_remote_from_descriptor)(descriptor, size - 1, &remote), RPMA_E_INVAL);
    check(remote == NULL, "a failure leaves the remote region as it was");
    IS(CALL(rpma_mr_remote_from_descriptor)(descriptor, size, &remote), 0);
    IS(CALL(rpma_mr_remote_get_size)(NULL, &remote_size), RPMA_E_INVAL);
    IS(CALL(rpma_mr_remote_get_size)(remote, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_mr_remote_get_size)(remote, &remote_size), 0);
    check(remote_size == BYTES, "the size comes through a descriptor");
    IS(CALL(rpma_mr_remote_get_flush_type)(NULL, &flush), RPMA_E_INVAL);
    IS(CALL(rpma_mr_remote_get_flush_type)(remote, NULL), RPMA_E_INVAL);
    IS(CALL(rpma_mr_remote_get_flush_type)(remote, &flush), 0);
    check(flush == RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY, "the flush types come through a descriptor");
    IS(CALL(rpma_mr_remote_delete)(NULL), RPMA_E_INVAL);
    IS(CALL(rpma_mr_remote_delete)(&remote), 0);
    check(remote == NULL, "a deleted remote region is NULL");
    IS(CALL(rpma_mr_remote_delete)(&remote), 0);
    /* Programs give the size of the field that they keep it in. */
    IS(CALL(rpma_mr_remote_from_descriptor)(descriptor, size + 1, &remote), 0);
    IS(CALL(rpma_mr_remote_delete)(&remote), 0);
    IS(CALL(rpma_mr_remote_from_descriptor)(descriptor, sizeof descriptor, &remote), 0);
    IS(CALL(rpma_mr_remote_delete)(&remote), 0);

    memcpy(changed, descriptor, sizeof changed);
    memset(changed, 0, size);
    IS_EITHER(CALL(rpma_mr_remote_from_descriptor)(changed, size, &remote), RPMA_E_INVAL, RPMA_E_NOSUPP);
    if (options.reference) {
        memcpy(changed, descriptor, sizeof changed);
        changed[20] = 0;
        IS_EITHER(CALL(rpma_mr_remote_from_descriptor)(changed, size, &remote), RPMA_E_INVAL, RPMA_E_NOSUPP);
    }
    unsigned refused = 0;
    for (size_t byte = 0; byte < size; byte++) {
        memcpy(changed, descriptor, sizeof changed);
        changed[byte] ^= 0xff;
        struct rpma_mr_remote *strange = NULL;
        int returned = CALL(rpma_mr_remote_from_descriptor)(changed, size, &strange);
        if (returned != 0 && returned != RPMA_E_INVAL && returned != RPMA_E_NOSUPP)
            check_code(returned, RPMA_E_INVAL, "a flipped byte is refused or taken");
        refused += returned != 0;
        if (returned == 0)
            NEED(CALL(rpma_mr_remote_delete)(&strange));
    }
    check(true, "each byte of a descriptor flipped, nothing worse than a refusal (%u refused)", refused);
    NEED(CALL(rpma_mr_dereg)(&registered));
}

static void check_advice(struct rpma_peer *peer, unsigned char *memory) {
    section("advice");
    struct rpma_mr_local *registered = NULL;
    NEED(CALL(rpma_mr_reg)(peer, memory, BYTES, RPMA_MR_USAGE_WRITE_DST, &registered));
    int given = CALL(rpma_mr_advise)(registered, 0, BYTES, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
                                     IBV_ADVISE_MR_FLAG_FLUSH);
    /* It is a hint, and servers of fio that get no success for it end with an error. */
    if (options.reference)
        check_codes(given, 0, RPMA_E_NOSUPP, "advice on all of a region is taken, or is not supported by the device");
    else
        check_code(given, 0, "advice on all of a region is taken");
    IS_UNLESS_REFERENCE("librpma crashes", CALL(rpma_mr_advise)(NULL, 0, BYTES, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
                                                               IBV_ADVISE_MR_FLAG_FLUSH), RPMA_E_INVAL);
    /* A device that takes no advice at all says so first. */
    IS_EITHER(CALL(rpma_mr_advise)(registered, 1, BYTES, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
                                   IBV_ADVISE_MR_FLAG_FLUSH), RPMA_E_INVAL, RPMA_E_NOSUPP);
    IS_EITHER(CALL(rpma_mr_advise)(registered, BYTES + 1, 1, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
                                   IBV_ADVISE_MR_FLAG_FLUSH), RPMA_E_INVAL, RPMA_E_NOSUPP);
    IS_EITHER(CALL(rpma_mr_advise)(registered, SIZE_MAX, 2, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
                                   IBV_ADVISE_MR_FLAG_FLUSH), RPMA_E_INVAL, RPMA_E_NOSUPP);
    IS_EITHER(CALL(rpma_mr_advise)(registered, 0, BYTES, 77, IBV_ADVISE_MR_FLAG_FLUSH), RPMA_E_INVAL, RPMA_E_NOSUPP);
    IS_EITHER(CALL(rpma_mr_advise)(registered, 0, BYTES, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0x80000000),
              RPMA_E_INVAL, RPMA_E_NOSUPP);
    NEED(CALL(rpma_mr_dereg)(&registered));
}

void check_memory(void) {
    unsigned char *memory = NULL;
    if (posix_memalign((void **)&memory, (size_t)sysconf(_SC_PAGESIZE), BYTES) != 0)
        bail_out("no memory");
    memset(memory, 0, BYTES);
    struct rpma_peer *peer = new_peer();
    check_registration(peer, memory);
    check_memory_descriptors(peer, memory);
    check_advice(peer, memory);
    delete_peer(&peer);
    free(memory);
}
