#include "stage.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

struct stage stage;

char *path_of(char path[PATH_BYTES], const char *format, ...) {
    int length = snprintf(path, PATH_BYTES, "%s/", stage.directory);
    va_list arguments;
    va_start(arguments, format);
    length += vsnprintf(path + length, PATH_BYTES - (size_t)length, format, arguments);
    va_end(arguments);
    if (length >= PATH_BYTES)
        bail_out("the path %s is too long", path);
    return path;
}

void write_file(const char *name, bool is_program, const char *format, ...) {
    char path[PATH_BYTES];
    FILE *file = fopen(path_of(path, "%s", name), "w");
    if (file == NULL)
        bail_out("cannot write %s", path);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    if (fclose(file) != 0 || chmod(path, is_program ? 0755 : 0644) != 0)
        bail_out("cannot write %s", path);
}

void write_set(const char *name, size_t bytes, const char *option) {
    char set[PATH_BYTES];
    snprintf(set, sizeof set, "sets/%s.set", name);
    write_file(set, false, "PMEMPOOLSET\n%s%s%zu %s/parts/%s.0\n", option, option[0] == '\0' ? "" : "\n", bytes,
               stage.directory, name);
}

unsigned char *contents(const char *name, size_t *bytes) {
    char path[PATH_BYTES];
    FILE *file = fopen(path_of(path, "%s", name), "r");
    struct stat about;
    if (file == NULL)
        return NULL;
    unsigned char *read = NULL;
    if (fstat(fileno(file), &about) == 0)
        read = malloc((size_t)about.st_size + 1);
    if (read == NULL || fread(read, 1, (size_t)about.st_size, file) != (size_t)about.st_size)
        bail_out("cannot read %s", path);
    fclose(file);
    read[about.st_size] = 0;
    *bytes = (size_t)about.st_size;
    return read;
}

bool exists(const char *name) {
    char path[PATH_BYTES];
    return access(path_of(path, "%s", name), F_OK) == 0;
}

void delete_file(const char *name) {
    char path[PATH_BYTES];
    if (unlink(path_of(path, "%s", name)) != 0)
        bail_out("cannot delete %s", path);
}

/* How many process numbers are in `pids`, and the one at an index. */
static unsigned targets(unsigned index, pid_t *at_index) {
    size_t bytes;
    char *text = (char *)contents("pids", &bytes);
    if (text == NULL)
        return 0;
    unsigned count = 0;
    char *end;
    for (char *at = text; at[0] != '\0'; at = end, count++) {
        pid_t process = (pid_t)strtol(at, &end, 10);
        if (count == index)
            *at_index = process;
        end += *end == '\n';
    }
    free(text);
    return count;
}

unsigned targets_started(void) {
    pid_t first;
    return targets(0, &first);
}

pid_t target_number(unsigned index) {
    pid_t process;
    if (targets(index, &process) <= index)
        bail_out("fewer targets were started than %u", index);
    return process;
}

pid_t last_target(void) {
    return target_number(targets_started() - 1);
}

bool ends_within(pid_t process, unsigned limit_ms) {
    double deadline = now_ms() + limit_ms;
    while (kill(process, 0) == 0 || errno != ESRCH) {
        if (now_ms() > deadline)
            return false;
        usleep(1000);
    }
    return true;
}
