/*
 * The limits of memory and time of scripts.
 *
 * The library mruby is not safe if an allocation fails or collects garbage in the middle of its work: version 3.1 leaves a fiber without
 * its stack, believes that a list has grown that has not, or writes to a scope that was collected. And in Debian 12 it has no hook that
 * runs between instructions. So both limits interrupt a script in the same way, between two instructions, when no operation is half done:
 * the bytecode of scripts is on memory pages of its own, which are made unreadable. The next fetch of an instruction raises SIGSEGV in the
 * thread of the VM. The handler of that signal makes the pages readable again, and raises the exception.
 *
 * The library's own code in Ruby, in which a loop need not call the script, is shared by all VMs and lies in the program. So each VM
 * gets a copy of it, on such pages.
 */
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "limits.h"
#include <mruby/class.h>
#include <mruby/debug.h>
#include <mruby/error.h>
#include <mruby/gc.h>
#include <mruby/proc.h>

/* Why the pages with bytecode are unreadable. DUE_PLACE: the watchdog wants to know where the script is; the script
 * continues after that. */
enum due { DUE_NOTHING, DUE_TIME, DUE_MEMORY, DUE_PLACE, DUES };

/* How many exceptions of interrupts a script may rescue before it waits or ends. */
enum { RESCUABLE = 2 };

struct shim_watch {
  mrb_state *mrb;
  struct shim_memory *memory;
  pthread_mutex_t lock;  /* protects `pages`, the memory protection of these pages, and `place` */
  atomic_ulong entries;  /* counts each time that the VM is entered or left: odd while it runs */
  clockid_t clock;       /* clock of the processor time of the VM's thread */
  int has_clock;
  atomic_int due;        /* why the pages with bytecode are unreadable, or are about to be; else DUE_NOTHING */
  int interrupts;        /* number of interrupts since the VM was entered */
  int is_raising;        /* whether the signal handler is preparing an exception */
  uint64_t exceptions[DUES];
  char place[512];       /* FILE:LINE where the script was when the watchdog asked; empty if no new place is known */
  struct pages {
    uint8_t *start;
    size_t size;
    mrb_irep *evaluated;  /* code from a string, to which the watch has a reference; NULL for code that is never freed */
    int is_library;       /* whether the code is the copy of the library's code */
  } *pages;
  size_t count;
  size_t evaluated;       /* how many of `pages` have code from strings */
  size_t sweep_at;        /* value of `evaluated` at which the pages of unused code are unmapped */
  mrb_irep *library;      /* the copies of the library's code, but for the bytecode */
};

/* ---- the limit of memory ---- */

static void interrupt_for_memory(struct shim_watch *of);

/* Octets. A smaller allocation is granted even beyond the limit: it is less than a page of objects, and every object needs some. */
enum { SMALL = 16 * 1024 };

/* Above this many octets memory is scarce. The rest of the limit is for operations that have begun by then. */
static size_t scarce(const struct shim_memory *memory) { return memory->limit - memory->limit / 8; }

/* Whether an allocation of `size` octets, after which `used` octets are in use, is allowed. If not, the library collects garbage and asks
 * again. */
static int is_granted(struct shim_memory *memory, size_t size, size_t used)
{
  if (used <= scarce(memory))
    return 1;
  if (used > memory->limit && (size > SMALL || used - memory->limit > memory->limit / 4))
    return 0;
  if (memory->watch)
    interrupt_for_memory(memory->watch);
  return 1;
}

void *limits_allocate(mrb_state *mrb, void *old, size_t size, void *userdata)
{
  struct shim_memory *memory = userdata;
  size_t before = old ? malloc_usable_size(old) : 0;
  void *fresh;
  (void)mrb;
  if (size == 0) {
    free(old);
    memory->used -= before;
    return NULL;
  }
  if (size > before && (size > memory->limit || !is_granted(memory, size, memory->used - before + size)))
    return NULL;
  fresh = realloc(old, size);
  if (!fresh)
    return NULL;
  memory->used += malloc_usable_size(fresh) - before;
  if (memory->used > memory->most)
    memory->most = memory->used;
  return fresh;
}

void limits_charge(struct shim_memory *memory, size_t size)
{
  memory->used += size;
  if (memory->used > memory->most)
    memory->most = memory->used;
  if (memory->used > scarce(memory) && memory->watch)
    interrupt_for_memory(memory->watch);
}

/* Returns free memory to the system: the allocator of the C library keeps the many small pieces that a script has freed. */
void limits_trim(void)
{
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

/* ---- interrupting a script ---- */

static __thread struct shim_watch *watch;
static struct sigaction former;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Sets the protection of all pages with bytecode. With PROT_NONE the script is interrupted at its next instruction. */
static void set_protection(struct shim_watch *of, int protection)
{
  size_t i;
  for (i = 0; i < of->count; i++)
    mprotect(of->pages[i].start, of->pages[i].size, protection);
}

/* Makes the pages with bytecode readable again. Returns why they were not. */
static enum due give_back(struct shim_watch *of)
{
  enum due due;
  pthread_mutex_lock(&of->lock);
  due = atomic_exchange(&of->due, DUE_NOTHING);
  if (due != DUE_NOTHING)
    set_protection(of, PROT_READ);
  pthread_mutex_unlock(&of->lock);
  return due;
}

/* Interrupts the script at its next instruction because memory is scarce. Called by the thread of the VM. */
static void interrupt_for_memory(struct shim_watch *of)
{
  int due = atomic_load(&of->due);
  if (!(atomic_load(&of->entries) & 1) || of->is_raising || due == DUE_TIME || due == DUE_MEMORY)
    return;
  pthread_mutex_lock(&of->lock);
  atomic_store(&of->due, DUE_MEMORY);
  set_protection(of, PROT_NONE);
  pthread_mutex_unlock(&of->lock);
}

static const struct pages *pages_of(const struct shim_watch *of, const uint8_t *address)
{
  size_t i;
  for (i = 0; i < of->count; i++)
    if (address >= of->pages[i].start && address < of->pages[i].start + of->pages[i].size)
      return &of->pages[i];
  return NULL;
}

static int is_code(const struct shim_watch *of, const uint8_t *address) { return pages_of(of, address) != NULL; }

/* Whether the address is in code of a script, and not in that of the library. */
static int is_script(const struct shim_watch *of, const uint8_t *address)
{
  const struct pages *pages = pages_of(of, address);
  return pages && !pages->is_library;
}

static const mrb_irep *code_of(const mrb_callinfo *frame)
{
  return frame->proc && !MRB_PROC_CFUNC_P(frame->proc) ? frame->proc->body.irep : NULL;
}

/* Stores the place of the running frame, which the library does only at calls: the backtrace and the choice of `rescue` need it now. */
static void set_place(mrb_state *mrb, const uint8_t *address)
{
  const mrb_irep *code = code_of(mrb->c->ci);
  if (code && address >= code->iseq && address < code->iseq + code->ilen)
    mrb->c->ci->pc = address + 1;
}

/* Makes all `rescue` and `ensure` of the script's frames ineffective: none covers the first instruction of a frame, which is stored as the
 * place of each. */
static void forget_rescues(struct shim_watch *of)
{
  struct mrb_context *context;
  mrb_callinfo *frame;
  for (context = of->mrb->c; context; context = context->prev)
    for (frame = context->ci; frame >= context->cibase; frame--) {
      const mrb_irep *code = code_of(frame);
      if (code && is_code(of, code->iseq))
        frame->pc = code->iseq;
    }
}

/* Stores in `place` where the script has made the call that has just returned: the instruction before the one at `address`, which it
 * fetches now. */
static void note_place(struct shim_watch *of, const uint8_t *address)
{
  mrb_state *mrb = of->mrb;
  const mrb_callinfo *frame;
  for (frame = mrb->c->ci; frame >= mrb->c->cibase; frame--) {
    const mrb_irep *code = code_of(frame);
    const uint8_t *next = frame == mrb->c->ci ? address : frame->pc;
    if (code && is_script(of, code->iseq) && next > code->iseq && next <= code->iseq + code->ilen) {
      uint32_t before = (uint32_t)(next - code->iseq) - 1;
      const char *file = mrb_debug_get_filename(mrb, code, before);
      int line = (int)mrb_debug_get_line(mrb, code, before);
      pthread_mutex_lock(&of->lock);
      snprintf(of->place, sizeof of->place, "%s:%d", file ? file : "?", line);
      pthread_mutex_unlock(&of->lock);
      return;
    }
  }
}

static mrb_value raise_it(mrb_state *mrb, void *exception) { mrb_exc_raise(mrb, *(mrb_value *)exception); }

/* Applies the interrupt `due` between two instructions of the script. Returns if the script may continue; raises an exception otherwise. */
static void enforce(struct shim_watch *of, enum due due, const uint8_t *place)
{
  mrb_state *mrb = of->mrb;
  mrb_value exception = cooked(of->exceptions[due]);
  mrb_bool failed;
  if (due == DUE_PLACE) {
    note_place(of, place);
    return;
  }
  if (due == DUE_MEMORY) {
    mrb_full_gc(mrb);
    limits_sweep(mrb, of);
    if (of->memory->used <= scarce(of->memory))
      return;
  }
  set_place(mrb, place);
  /* Gives the exception its backtrace, for which the memory above the scarce limit is used. */
  of->is_raising = 1;
  mrb_protect_error(mrb, raise_it, &exception, &failed);
  of->is_raising = 0;
  if (++of->interrupts > RESCUABLE)
    forget_rescues(of);
  mrb_exc_raise(mrb, exception);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
  struct shim_watch *of = watch;
  if (of && (atomic_load(&of->entries) & 1) && is_code(of, info->si_addr)) {
    enum due due = give_back(of);
    if (due != DUE_NOTHING && of->mrb->jmp)
      enforce(of, due, info->si_addr);
    return;
  }
  if (former.sa_flags & SA_SIGINFO)
    former.sa_sigaction(number, info, context);
  else if (former.sa_handler == SIG_DFL || former.sa_handler == SIG_IGN)
    sigaction(number, &former, NULL);
  else
    former.sa_handler(number);
}

static void install(void)
{
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_fault;
  /* SA_NODEFER, since the handler is left by a jump, which would leave the signal blocked. */
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &former);
}

/* ---- the stack of the signal handler ---- */

/* Size of the handler's stack in octets. The handler collects garbage, which drops objects of Rust. */
enum { HANDLER_STACK = 512 * 1024 };

static pthread_key_t handler_stack;
static pthread_once_t handler_stack_once = PTHREAD_ONCE_INIT;

/* Frees the handler's stack of a thread that ends. */
static void free_stack(void *stack)
{
  stack_t none;
  memset(&none, 0, sizeof none);
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, NULL);
  munmap(stack, HANDLER_STACK);
}

static void make_key(void) { pthread_key_create(&handler_stack, free_stack); }

/* Gives this thread a stack for the signal handler. Returns whether there was memory for it. */
static int prepare_stack(void)
{
  stack_t stack;
  pthread_once(&handler_stack_once, make_key);
  if (pthread_getspecific(handler_stack))
    return 1;
  memset(&stack, 0, sizeof stack);
  stack.ss_size = HANDLER_STACK;
  stack.ss_sp = mmap(NULL, HANDLER_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack.ss_sp == MAP_FAILED)
    return 0;
  if (sigaltstack(&stack, NULL) != 0 || pthread_setspecific(handler_stack, stack.ss_sp) != 0) {
    munmap(stack.ss_sp, HANDLER_STACK);
    return 0;
  }
  return 1;
}

/* ---- entering and leaving a VM ---- */

struct shim_watch *shim_watch_new(mrb_state *mrb, struct shim_memory *memory)
{
  struct shim_watch *of = prepare_stack() ? calloc(1, sizeof *of) : NULL;
  if (of) {
    of->mrb = mrb;
    of->memory = memory;
    of->exceptions[DUE_TIME] = of->exceptions[DUE_MEMORY] = raw(mrb_nil_value());
    of->has_clock = pthread_getcpuclockid(pthread_self(), &of->clock) == 0;
    pthread_mutex_init(&of->lock, NULL);
    pthread_once(&once, install);
  }
  return of;
}

/* Frees a watch. Must be called after the VM is closed, and when the watchdog does not use the watch any more. */
void shim_watch_free(struct shim_watch *of)
{
  size_t i;
  for (i = 0; i < of->count; i++)
    munmap(of->pages[i].start, of->pages[i].size);
  free(of->pages);
  free(of->library);
  pthread_mutex_destroy(&of->lock);
  free(of);
}

/* Sets the exceptions of both limits. From now on the script is interrupted when memory is scarce. */
void shim_watch_set_exceptions(struct shim_watch *of, uint64_t time, uint64_t memory)
{
  of->exceptions[DUE_TIME] = time;
  of->exceptions[DUE_MEMORY] = memory;
  of->memory->watch = of;
}

/* Notes that the thread enters a VM in which nothing runs. Returns the thread's previous watch, which `shim_watch_leave` restores. */
struct shim_watch *shim_watch_enter(struct shim_watch *of)
{
  struct shim_watch *before = watch;
  watch = of;
  of->interrupts = 0;
  /* Only this thread writes `entries`. Unlike when the thread leaves the VM, nothing depends on when other threads see the new value. */
  atomic_store_explicit(&of->entries, atomic_load_explicit(&of->entries, memory_order_relaxed) + 1, memory_order_release);
  return before;
}

/* Notes that the thread leaves the VM. Returns how often the VM was interrupted meanwhile. */
int shim_watch_leave(struct shim_watch *of, struct shim_watch *before)
{
  atomic_fetch_add(&of->entries, 1);
  if (atomic_load(&of->due) != DUE_NOTHING)
    give_back(of);
  watch = before;
  return of->interrupts;
}

/* Whether the script is to be interrupted at its next instruction because it has run for too long. */
int shim_watch_is_overdue(struct shim_watch *of) { return atomic_load(&of->due) == DUE_TIME; }

/* Called by other threads: a number that is odd while the VM runs, and different each time that the VM is entered. */
unsigned long shim_watch_entries(struct shim_watch *of) { return atomic_load(&of->entries); }

/* Called by other threads: the processor time that the VM's thread has used, in nanoseconds; 0 if it cannot be measured. */
uint64_t shim_watch_time(struct shim_watch *of)
{
  struct timespec time;
  if (!of->has_clock || clock_gettime(of->clock, &time) != 0)
    return 0;
  return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/*
 * Arranges for the interrupt `due` at the next instruction, if the VM still runs what it ran when `entries` was `entry`. Returns whether it
 * does. The caller must hold the lock.
 */
static int is_wanted(struct shim_watch *of, unsigned long entry, enum due due)
{
  int before = atomic_load(&of->due);
  if (before == DUE_NOTHING)
    atomic_store(&of->due, due);
  /* If the VM's thread leaves the VM from now on, it sees `due` and waits for the lock. */
  if (atomic_load(&of->entries) != entry) {
    if (before == DUE_NOTHING)
      atomic_store(&of->due, DUE_NOTHING);
    return 0;
  }
  if (before == DUE_NOTHING)
    set_protection(of, PROT_NONE);
  return 1;
}

/* Called by the watchdog: interrupts the script if the VM still runs what it ran when `entries` was `entry`. Returns whether it does. */
int shim_watch_interrupt(struct shim_watch *of, unsigned long entry)
{
  int interrupts, before;
  pthread_mutex_lock(&of->lock);
  before = atomic_load(&of->due);
  interrupts = is_wanted(of, entry, DUE_TIME);
  if (interrupts && before == DUE_PLACE)
    atomic_store(&of->due, DUE_TIME);
  pthread_mutex_unlock(&of->lock);
  return interrupts;
}

/* Called by the watchdog: asks for the place of the script, if the VM still runs what it ran when `entries` was `entry`. */
void shim_watch_ask_place(struct shim_watch *of, unsigned long entry)
{
  pthread_mutex_lock(&of->lock);
  is_wanted(of, entry, DUE_PLACE);
  pthread_mutex_unlock(&of->lock);
}

/* Called by the watchdog: copies the place of the script to `place`, as a text that ends with NUL, and clears it. Returns whether a place was
 * known. */
int shim_watch_take_place(struct shim_watch *of, char *place, size_t size)
{
  int known;
  pthread_mutex_lock(&of->lock);
  known = of->place[0] != 0;
  snprintf(place, size, "%s", of->place);
  of->place[0] = 0;
  pthread_mutex_unlock(&of->lock);
  return known;
}

/* ---- code on pages of its own ---- */

struct code {
  uint8_t *pages;
  size_t size;
  size_t used;
};

static size_t size_of(const mrb_irep *irep)
{
  return irep->ilen * sizeof(mrb_code) + irep->clen * sizeof(struct mrb_irep_catch_handler);
}

static size_t size_of_all(const mrb_irep *irep)
{
  size_t size = size_of(irep);
  int i;
  for (i = 0; i < irep->rlen; i++)
    size += size_of_all(irep->reps[i]);
  return size;
}

static void move_code(mrb_state *mrb, mrb_irep *irep, struct code *code)
{
  size_t size = size_of(irep);
  int i;
  if (!(irep->flags & MRB_ISEQ_NO_FREE)) {
    memcpy(code->pages + code->used, irep->iseq, size);
    mrb_free(mrb, (void *)irep->iseq);
    irep->iseq = code->pages + code->used;
    irep->flags |= MRB_ISEQ_NO_FREE;
    code->used += size;
  }
  for (i = 0; i < irep->rlen; i++)
    move_code(mrb, (mrb_irep *)irep->reps[i], code);
}

/* Makes room in the list `pages` for one more entry. Returns whether there was memory for it. */
static int reserve_pages(struct shim_watch *of)
{
  struct pages *pages;
  pthread_mutex_lock(&of->lock);
  pages = realloc(of->pages, (of->count + 1) * sizeof *pages);
  if (pages)
    of->pages = pages;
  pthread_mutex_unlock(&of->lock);
  return pages != NULL;
}

/* Adds pages with code to the list, so that the code can be interrupted. */
static void add_pages(struct shim_watch *of, const struct code *code, mrb_irep *evaluated, int is_library)
{
  pthread_mutex_lock(&of->lock);
  of->pages[of->count].start = code->pages;
  of->pages[of->count].size = code->size;
  of->pages[of->count].evaluated = evaluated;
  of->pages[of->count].is_library = is_library;
  of->count++;
  mprotect(code->pages, code->size, atomic_load(&of->due) == DUE_NOTHING ? PROT_READ : PROT_NONE);
  pthread_mutex_unlock(&of->lock);
}

static size_t whole_pages(size_t size)
{
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return (size + page - 1) / page * page;
}

static size_t pages_for(const mrb_irep *irep) { return whole_pages(size_of_all(irep)); }

static uint8_t *map_pages(size_t size)
{
  uint8_t *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? NULL : pages;
}

/* Moves bytecode to pages of its own. Returns whether there was memory for them. */
static int isolate(mrb_state *mrb, struct shim_watch *of, mrb_irep *irep, mrb_irep *evaluated)
{
  struct code code = { NULL, pages_for(irep), 0 };
  if (!reserve_pages(of))
    return 0;
  code.pages = map_pages(code.size);
  if (!code.pages)
    return 0;
  move_code(mrb, irep, &code);
  add_pages(of, &code, evaluated, 0);
  return 1;
}

void limits_isolate(mrb_state *mrb, struct shim_watch *of, mrb_irep *irep)
{
  isolate(mrb, of, irep, NULL);
}

/* ---- the library's code ---- */

struct copy {
  const mrb_irep *irep;
  mrb_irep *copy;
};

/* The library's code that is to be copied: each part, perhaps several times. */
struct library {
  struct copy *parts;
  size_t count;
  size_t room;
  int lacks_memory;
};

static int is_of_library(const mrb_irep *irep) { return (irep->flags & MRB_IREP_STATIC) == MRB_IREP_STATIC; }

static void add_part(struct library *library, const mrb_irep *irep)
{
  int i;
  if (library->count == library->room) {
    size_t room = 2 * library->room + 1024;
    struct copy *parts = realloc(library->parts, room * sizeof *parts);
    if (!parts) {
      library->lacks_memory = 1;
      return;
    }
    library->parts = parts;
    library->room = room;
  }
  library->parts[library->count].irep = irep;
  library->parts[library->count++].copy = NULL;
  for (i = 0; i < irep->rlen; i++)
    add_part(library, irep->reps[i]);
}

static const mrb_irep *code_of_object(struct RBasic *object)
{
  struct RProc *proc = (struct RProc *)object;
#ifdef MRB_PROC_ALIAS_P
  /* Since version 3.2, an alias of a method has its name in place of code. */
  if (object->tt == MRB_TT_PROC && MRB_PROC_ALIAS_P(proc))
    return NULL;
#endif
  return object->tt == MRB_TT_PROC && !MRB_PROC_CFUNC_P(proc) ? proc->body.irep : NULL;
}

static int add_object(mrb_state *mrb, struct RBasic *object, void *library)
{
  const mrb_irep *irep = code_of_object(object);
  (void)mrb;
  if (irep && is_of_library(irep))
    add_part(library, irep);
  return MRB_EACH_OBJ_OK;
}

static int compare(const void *one, const void *other)
{
  uintptr_t a = (uintptr_t)((const struct copy *)one)->irep, b = (uintptr_t)((const struct copy *)other)->irep;
  return (a > b) - (a < b);
}

static mrb_irep *copy_of(const struct library *library, const mrb_irep *irep)
{
  struct copy wanted = { irep, NULL }, *found;
  found = bsearch(&wanted, library->parts, library->count, sizeof wanted, compare);
  return found ? found->copy : NULL;
}

static int use_copy(mrb_state *mrb, struct RBasic *object, void *library)
{
  const mrb_irep *irep = code_of_object(object);
  mrb_irep *copy = irep ? copy_of(library, irep) : NULL;
  (void)mrb;
  if (copy)
    ((struct RProc *)object)->body.irep = copy;
  return MRB_EACH_OBJ_OK;
}

/* Copies the parts: the bytecode to `code`, the rest to the watch. Returns whether there was memory for them. */
static int copy_parts(struct shim_watch *of, struct library *library, struct code *code)
{
  size_t i, octets = 0, children = 0;
  const mrb_irep **reps;
  int child;
  for (i = 0; i < library->count; i++) {
    octets += size_of(library->parts[i].irep);
    children += library->parts[i].irep->rlen;
  }
  code->size = whole_pages(octets);
  of->library = malloc(library->count * sizeof(mrb_irep) + children * sizeof *reps);
  code->pages = of->library ? map_pages(code->size) : NULL;
  if (!code->pages)
    return 0;
  reps = (const mrb_irep **)(of->library + library->count);
  for (i = 0; i < library->count; i++)
    library->parts[i].copy = of->library + i;
  for (i = 0; i < library->count; i++) {
    const mrb_irep *irep = library->parts[i].irep;
    mrb_irep *copy = library->parts[i].copy;
    *copy = *irep;
    memcpy(code->pages + code->used, irep->iseq, size_of(irep));
    copy->iseq = code->pages + code->used;
    code->used += size_of(irep);
    copy->reps = reps;
    for (child = 0; child < irep->rlen; child++)
      *reps++ = copy_of(library, irep->reps[child]);
  }
  return 1;
}

void limits_copy_library(mrb_state *mrb, struct shim_watch *of)
{
  struct library library = { NULL, 0, 0, 0 };
  struct code code = { NULL, 0, 0 };
  size_t i, count = 0;
  mrb_objspace_each_objects(mrb, add_object, &library);
  qsort(library.parts, library.count, sizeof *library.parts, compare);
  for (i = 0; i < library.count; i++)
    if (i == 0 || library.parts[i].irep != library.parts[count - 1].irep)
      library.parts[count++] = library.parts[i];
  library.count = count;
  if (count > 0 && !library.lacks_memory && reserve_pages(of) && copy_parts(of, &library, &code)) {
    mrb_objspace_each_objects(mrb, use_copy, &library);
    add_pages(of, &code, NULL, 1);
  }
  free(library.parts);
}

/* ---- code from strings ---- */

/*
 * Code that scripts evaluate from strings is compiled by the library, and moved to pages of its own when it is about to run. The pages are
 * kept as long as anything refers to the code or to a part of it, such as a block: the watch has one reference to each part, and checks the
 * reference counts for others.
 */

/* Adds a reference to the code and to each of its parts. */
static void refer(mrb_state *mrb, mrb_irep *irep)
{
  int i;
  mrb_irep_incref(mrb, irep);
  for (i = 0; i < irep->rlen; i++)
    refer(mrb, (mrb_irep *)irep->reps[i]);
}

/* Removes a reference to the code and to each of its parts. Removing the last reference frees them. */
static void forget(mrb_state *mrb, mrb_irep *irep)
{
  int i;
  for (i = 0; i < irep->rlen; i++)
    forget(mrb, (mrb_irep *)irep->reps[i]);
  mrb_irep_decref(mrb, irep);
}

/* Whether only the watch refers to the code and its parts, besides `owners` references by the code that contains this code. */
static int is_unused(const mrb_irep *irep, int owners)
{
  int i;
  if (irep->refcnt > 1 + owners)
    return 0;
  for (i = 0; i < irep->rlen; i++)
    if (!is_unused(irep->reps[i], 1))
      return 0;
  return 1;
}

void limits_sweep(mrb_state *mrb, struct shim_watch *of)
{
  size_t i = 0;
  while (i < of->count) {
    struct pages pages = of->pages[i];
    if (!pages.evaluated || !is_unused(pages.evaluated, 0)) {
      i++;
      continue;
    }
    pthread_mutex_lock(&of->lock);
    of->pages[i] = of->pages[--of->count];
    pthread_mutex_unlock(&of->lock);
    forget(mrb, pages.evaluated);
    munmap(pages.start, pages.size);
    of->memory->used -= pages.size;
    of->evaluated--;
  }
  of->sweep_at = 2 * of->evaluated + 16;
}

/* Drops the references of the watch to evaluated code, so that closing the VM frees the code. Its pages are kept until the watch is freed. */
void limits_close(struct shim_watch *of)
{
  size_t i;
  for (i = 0; i < of->count; i++) {
    mrb_irep *code = of->pages[i].evaluated;
    if (!code)
      continue;
    of->pages[i].evaluated = NULL;
    of->memory->used -= of->pages[i].size;
    forget(of->mrb, code);
  }
}

/* Moves code from a string to pages of its own. Returns whether there was memory for them. */
static int isolate_evaluated(mrb_state *mrb, struct shim_watch *of, mrb_irep *irep)
{
  size_t size = pages_for(irep);
  if (of->evaluated >= of->sweep_at)
    limits_sweep(mrb, of);
  if (of->memory->used + size > scarce(of->memory)) {
    mrb_full_gc(mrb);
    limits_sweep(mrb, of);
    if (of->memory->used + size > scarce(of->memory))
      return 0;
  }
  if (!isolate(mrb, of, irep, irep))
    return 0;
  refer(mrb, irep);
  of->memory->used += size;
  of->evaluated++;
  return 1;
}

struct evaluation {
  mrb_func_t function;
  mrb_value receiver;
};

static mrb_value begin(mrb_state *mrb, void *data)
{
  struct evaluation *evaluation = data;
  return evaluation->function(mrb, evaluation->receiver);
}

/*
 * Replaces `eval` and the like, so that their code is moved before it runs. If the interpreter calls such a method, the method turns its own
 * frame into that of the code, pushes a frame that the interpreter drops, and returns: then the interpreter runs the code. If a function of C
 * calls it, the method would run the code itself before it could be moved; so this function lets the method believe that the interpreter
 * has called it.
 */
static mrb_value evaluate_text(mrb_state *mrb, mrb_value self)
{
  struct evaluation evaluation;
  struct shim_watch *of = watch;
  ptrdiff_t place = mrb->c->ci - mrb->c->cibase;
  ptrdiff_t registers = mrb->c->ci->stack - mrb->c->stbase;
  mrb_callinfo called = *mrb->c->ci, *frame;
  mrb_bool failed = FALSE;
  mrb_value result;
  mrb_irep *code;
  evaluation.function = (mrb_func_t)mrb_cptr(mrb_proc_cfunc_env_get(mrb, 0));
  evaluation.receiver = self;
  mrb->c->ci->cci = 0;
  result = mrb_protect_error(mrb, begin, &evaluation, &failed);
  frame = mrb->c->cibase + place;
  if (failed) {
    frame->cci = called.cci;
    mrb_exc_raise(mrb, result);
  }
  code = (mrb_irep *)code_of(frame);
  if (mrb->c->ci != frame + 1 || !code) {
    frame->cci = called.cci;
    return result;
  }
  if (of && !(code->flags & MRB_ISEQ_NO_FREE)) {
    ptrdiff_t next = frame->pc - code->iseq;
    if (!isolate_evaluated(mrb, of, code)) {
      mrb->c->ci = frame;
      *frame = called;
      frame->stack = mrb->c->stbase + registers;
      mrb_exc_raise(mrb, cooked(of->exceptions[DUE_MEMORY]));
    }
    frame->pc = code->iseq + next;
  }
  if (called.cci != 0) {
    const struct RProc *proc = frame->proc;
    mrb->c->ci = frame;
    *frame = called;
    frame->stack = mrb->c->stbase + registers;
    return mrb_exec_irep(mrb, self, (struct RProc *)proc);
  }
  return result;
}

static void wrap(mrb_state *mrb, struct RClass *class, const char *name)
{
  mrb_sym symbol = mrb_intern_cstr(mrb, name);
  struct RClass *owner = class;
  mrb_method_t method = mrb_method_search_vm(mrb, &owner, symbol);
  struct RProc *proc;
  mrb_value function;
  if (MRB_METHOD_UNDEF_P(method) || !MRB_METHOD_CFUNC_P(method) || MRB_METHOD_CFUNC(method) == evaluate_text)
    return;
  function = mrb_cptr_value(mrb, (void *)MRB_METHOD_CFUNC(method));
  proc = mrb_proc_new_cfunc_with_env(mrb, evaluate_text, 1, &function);
  MRB_METHOD_FROM_PROC(method, proc);
  mrb_define_method_raw(mrb, owner, symbol, method);
}

void limits_prepare(mrb_state *mrb)
{
  wrap(mrb, mrb->kernel_module, "eval");
  wrap(mrb, mrb_class_ptr(mrb_singleton_class(mrb, mrb_obj_value(mrb->kernel_module))), "eval");
  wrap(mrb, mrb->object_class, "instance_eval");
  wrap(mrb, mrb->module_class, "class_eval");
  wrap(mrb, mrb->module_class, "module_eval");
  if (mrb_class_defined(mrb, "Binding"))
    wrap(mrb, mrb_class_get(mrb, "Binding"), "eval");
}
