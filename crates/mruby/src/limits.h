/* What a script may use: memory and time. */
#ifndef H2O_MRUBY_LIMITS_H
#define H2O_MRUBY_LIMITS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MRB_NO_PRESYM
#include <mruby/version.h>
#if MRUBY_RELEASE_MAJOR >= 4
/* Its header of symbol numbers includes a generated one that packages lack: names are looked up instead. */
#define MRUBY_PRESYM_H
#define MRB_SYM(name) mrb_intern_lit(mrb, #name)
#endif
#include <mruby.h>
#include <mruby/irep.h>

struct shim_watch;

/* Exported by the library since 3.1, declared by its headers only later. */
extern mrb_value mrb_exec_irep(mrb_state *mrb, mrb_value self, struct RProc *p);

/* The fields of `Memory` in ffi.rs. */
struct shim_memory {
  size_t used;  /* octets allocated, as malloc rounds them */
  size_t limit; /* no allocation beyond */
  size_t most;  /* largest `used` */
  struct shim_watch *watch; /* interrupts scripts before that; NULL as long as the VM is prepared */
};

/* The allocator of a VM. */
void *limits_allocate(mrb_state *mrb, void *old, size_t size, void *memory);

/* Moves the bytecode of a script to where it can be interrupted. Without memory for that it stays where it is. */
void limits_isolate(mrb_state *mrb, struct shim_watch *watch, mrb_irep *irep);

/* From now on code that scripts evaluate from strings can be interrupted. */
void limits_prepare(mrb_state *mrb);

static inline uint64_t raw(mrb_value value)
{
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline mrb_value cooked(uint64_t bits)
{
  mrb_value value;
  memcpy(&value, &bits, sizeof bits);
  return value;
}

#endif
