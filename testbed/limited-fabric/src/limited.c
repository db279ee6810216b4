/*
 * A libfabric.so.1 in front of the library at LIMITED_REAL, whose providers are as good as these variables say:
 *
 *   LIMITED_VERSION=10   it is version 1.10
 *   LIMITED_RMA=0        no provider has RMA
 *   LIMITED_REGIONS=N    at most N regions are registered at a time, as a device or RLIMIT_MEMLOCK would have it
 */
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static void *real(const char *name) {
    void *library = dlopen(getenv("LIMITED_REAL"), RTLD_NOW | RTLD_LOCAL);
    void *function = library == NULL ? NULL : dlsym(library, name);
    if (function == NULL) {
        fprintf(stderr, "limited: %s\n", dlerror());
        abort();
    }
    return function;
}

#define REAL(name) ((__typeof__(&name))real(#name))

uint32_t fi_version(void) {
    const char *minor = getenv("LIMITED_VERSION");
    return minor == NULL ? REAL(fi_version)() : FI_VERSION(1, atoi(minor));
}

const char *fi_strerror(int number) {
    return REAL(fi_strerror)(number);
}

void fi_freeinfo(struct fi_info *info) {
    REAL(fi_freeinfo)(info);
}

struct fi_info *fi_dupinfo(const struct fi_info *info) {
    return REAL(fi_dupinfo)(info);
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
               struct fi_info **found) {
    if (getenv("LIMITED_RMA") == NULL)
        return REAL(fi_getinfo)(version, node, service, flags, hints, found);
    if (hints != NULL && hints->caps & FI_RMA)
        return -FI_ENODATA;
    int status = REAL(fi_getinfo)(version, node, service, flags, hints, found);
    for (struct fi_info *info = status == 0 ? *found : NULL; info != NULL; info = info->next)
        info->caps &= ~(uint64_t)FI_RMA;
    return status;
}

static _Atomic int regions;
static struct fi_ops_mr limited_mr, *real_mr;
static struct fi_ops limited_region, *real_region;
static struct fi_ops_fabric limited_fabric, *real_fabric;

static int close_region(struct fid *region) {
    int status = real_region->close(region);
    if (status == 0)
        regions--;
    return status;
}

static int register_region(struct fid *domain, const void *start, size_t length, uint64_t access, uint64_t offset, uint64_t key,
                           uint64_t flags, struct fid_mr **region, void *context) {
    if (regions >= atoi(getenv("LIMITED_REGIONS")))
        return -FI_ENOMEM;
    int status = real_mr->reg(domain, start, length, access, offset, key, flags, region, context);
    if (status != 0)
        return status;
    regions++;
    real_region = (*region)->fid.ops;
    limited_region = *real_region;
    limited_region.close = close_region;
    (*region)->fid.ops = &limited_region;
    return 0;
}

static int open_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context) {
    int status = real_fabric->domain(fabric, info, domain, context);
    if (status != 0)
        return status;
    real_mr = (*domain)->mr;
    limited_mr = *real_mr;
    limited_mr.reg = register_region;
    (*domain)->mr = &limited_mr;
    return 0;
}

int fi_fabric(struct fi_fabric_attr *attributes, struct fid_fabric **fabric, void *context) {
    int status = REAL(fi_fabric)(attributes, fabric, context);
    if (status != 0 || getenv("LIMITED_REGIONS") == NULL)
        return status;
    real_fabric = (*fabric)->ops;
    limited_fabric = *real_fabric;
    limited_fabric.domain = open_domain;
    (*fabric)->ops = &limited_fabric;
    return 0;
}
