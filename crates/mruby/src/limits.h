/* The limits of memory and time of scripts. */
#ifndef H2O_MRUBY_LIMITS_H
#define H2O_MRUBY_LIMITS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MRB_NO_PRESYM
#include <mruby/version.h>
#if MRUBY_RELEASE_MAJOR >= 4
/* mruby 4's header of symbol numbers includes a generated header that packages lack: symbols are looked up by their names instead. */
#define MRUBY_PRESYM_H
#define MRB_SYM(name) mrb_intern_lit(mrb, #name)
#endif
#include <mruby.h>
#include <mruby/irep.h>

struct shim_watch;

/* The library exports this function since version 3.1, but its headers declare it only later. */
extern mrb_value mrb_exec_irep(mrb_state *mrb, mrb_value self, struct RProc *p);

/* The memory that a VM uses. The fields must be those of `Memory` in ffi.rs. */
struct shim_memory {
  size_t used;  /* octets that the library has allocated now, as malloc rounds them, and those that Rust has allocated for scripts */
  size_t limit; /* octets beyond which only small allocations are granted */
  size_t most;  /* largest value that `used` has had */
  struct shim_watch *watch; /* used to interrupt the script before the limit; NULL until the VM is prepared */
};

/* The allocator of a VM; `memory` is its `struct shim_memory`. */
void *limits_allocate(mrb_state *mrb, void *old, size_t size, void *memory);

/* Adds octets that Rust has allocated on behalf of the running script to `used`. If memory is scarce, the script is interrupted. */
void limits_charge(struct shim_memory *memory, size_t size);

/* Moves the bytecode of a script to pages of its own, where it can be interrupted. If there is no memory for the pages, the bytecode stays
 * where it is. */
void limits_isolate(mrb_state *mrb, struct shim_watch *watch, mrb_irep *irep);

/* Gives the VM a copy of the library's code in Ruby, on pages where it can be interrupted. If there is no memory for it, the VM uses the code
 * that all VMs share. */
void limits_copy_library(mrb_state *mrb, struct shim_watch *watch);

/* Replaces `eval` and the like in a VM, so that code that scripts evaluate from strings can be interrupted. */
void limits_prepare(mrb_state *mrb);

/* Unmaps the pages of code from strings to which nothing refers any more. */
void limits_sweep(mrb_state *mrb, struct shim_watch *watch);

/* Called before a VM is closed: lets go of the code that scripts have evaluated from strings. */
void limits_close(struct shim_watch *watch);

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
