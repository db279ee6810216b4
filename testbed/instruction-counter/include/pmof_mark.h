/* A mark for the instruction counter of the test bed: PMOF_MARK(id), id 0 to 255, known when compiling. */
#ifndef PMOF_MARK_H
#define PMOF_MARK_H

#define PMOF_MARK(id) __asm__ volatile(".byte 0x0f, 0x1f, 0x80, %c0, 0xab, 0x50, 0x51" : : "i"(id) : "memory")

#endif
