/* The functions of librpmem.so.1. */
#ifndef FUNCTIONS_H
#define FUNCTIONS_H

#define JUDGED_FUNCTIONS(_) \
    _(rpmem_create) \
    _(rpmem_open) \
    _(rpmem_set_attr) \
    _(rpmem_close) \
    _(rpmem_persist) \
    _(rpmem_flush) \
    _(rpmem_drain) \
    _(rpmem_deep_persist) \
    _(rpmem_read) \
    _(rpmem_remove) \
    _(rpmem_check_version) \
    _(rpmem_errormsg)

#endif
