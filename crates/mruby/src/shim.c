/*
 * The shim between Rust and libmruby. Everything that depends on a macro, a struct or a flag of mruby is in this file and in limits.c.
 *
 * No exception skips a frame of Rust: each operation that Rust calls and that may raise runs in mrb_protect_error (`shim_run`). Ruby calls
 * functions of Rust through `stub`, which raises only after the function of Rust has returned.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "limits.h"
#include <mruby/array.h>
#include <mruby/class.h>
#include <mruby/compile.h>
#include <mruby/data.h>
#include <mruby/error.h>
#include <mruby/hash.h>
#include <mruby/irep.h>
#include <mruby/numeric.h>
#include <mruby/proc.h>
#include <mruby/string.h>
#include <mruby/variable.h>

_Static_assert(sizeof(mrb_value) == 8, "values are passed to Rust as 64 bits");
_Static_assert(sizeof(mrb_int) == 8, "integers have 64 bits");
#if MRUBY_RELEASE_MAJOR < 3 || (MRUBY_RELEASE_MAJOR == 3 && MRUBY_RELEASE_MINOR < 1)
#error "mruby 3.1 or later is needed"
#endif

/* ---- opening and closing a VM ---- */

#if MRUBY_RELEASE_MAJOR >= 4
/* The library calls one allocator for all VMs: each function that may allocate stores here before for which VM. */
static _Thread_local struct shim_memory *memory_in_use;

void *mrb_basic_alloc_func(void *old, size_t size)
{
  return limits_allocate(NULL, old, size, memory_in_use);
}

static struct shim_memory *use_memory(struct shim_memory *memory)
{
  struct shim_memory *before = memory_in_use;
  memory_in_use = memory;
  return before;
}

static struct shim_memory *use_memory_of(const mrb_state *mrb) { return use_memory(mrb->ud); }
#else
static struct shim_memory *use_memory(struct shim_memory *memory) { return memory; }
static struct shim_memory *use_memory_of(const mrb_state *mrb) { (void)mrb; return NULL; }
#endif

mrb_state *shim_open(struct shim_memory *memory)
{
  struct shim_memory *before = use_memory(memory);
  mrb_state *mrb;
#if MRUBY_RELEASE_MAJOR >= 4
  mrb = mrb_open();
  if (mrb)
    mrb->ud = memory;
#else
  mrb = mrb_open_allocf(limits_allocate, memory);
#endif
  use_memory(before);
  return mrb;
}

void shim_close(mrb_state *mrb, struct shim_watch *watch)
{
  struct shim_memory *before = use_memory_of(mrb);
  if (watch)
    limits_close(watch);
  mrb_close(mrb);
  use_memory(before);
}

const char *shim_version(void)
{
  return MRUBY_RUBY_VERSION " " MRUBY_VERSION;
}

/* ---- functions on values that raise no exceptions ---- */

uint64_t shim_nil(void) { return raw(mrb_nil_value()); }
uint64_t shim_bool(int value) { return raw(mrb_bool_value(value != 0)); }

/* The number of a value's kind, as `Value::kind` in value.rs expects it. */
int shim_kind(uint64_t bits)
{
  mrb_value value = cooked(bits);
  switch (mrb_type(value)) {
  case MRB_TT_FALSE: return mrb_nil_p(value) ? 0 : 1;
  case MRB_TT_TRUE: return 2;
  case MRB_TT_INTEGER: return 3;
  case MRB_TT_FLOAT: return 4;
  case MRB_TT_SYMBOL: return 5;
  case MRB_TT_STRING: return 6;
  case MRB_TT_ARRAY: return 7;
  case MRB_TT_HASH: return 8;
  case MRB_TT_PROC: return 9;
  case MRB_TT_EXCEPTION: return 10;
  case MRB_TT_DATA: return 11;
  case MRB_TT_CLASS:
  case MRB_TT_MODULE:
  case MRB_TT_SCLASS: return 12;
  default: return 13;
  }
}

int64_t shim_integer(uint64_t bits) { return mrb_integer(cooked(bits)); }
double shim_float(uint64_t bits) { return mrb_float(cooked(bits)); }

const char *shim_string(uint64_t bits, size_t *len)
{
  mrb_value value = cooked(bits);
  *len = (size_t)RSTRING_LEN(value);
  return RSTRING_PTR(value);
}

const char *shim_symbol(mrb_state *mrb, uint64_t bits, size_t *len)
{
  mrb_int length;
  const char *name = mrb_sym_name_len(mrb, mrb_symbol(cooked(bits)), &length);
  *len = (size_t)length;
  return name;
}

const uint64_t *shim_array(uint64_t bits, size_t *len)
{
  mrb_value value = cooked(bits);
  *len = (size_t)RARRAY_LEN(value);
  return (const uint64_t *)RARRAY_PTR(value);
}

struct text_entries {
  uint64_t *values;
  size_t count, most;
  int has_others;
};

static int add_text_entry(mrb_state *mrb, mrb_value key, mrb_value value, void *data)
{
  struct text_entries *entries = data;
  (void)mrb;
  if (entries->count == entries->most || !mrb_string_p(key) || !mrb_string_p(value)) {
    entries->has_others = 1;
    return 1;
  }
  entries->values[2 * entries->count] = raw(key);
  entries->values[2 * entries->count + 1] = raw(value);
  entries->count++;
  return 0;
}

/* Writes the key and the value of each entry of a Hash to `values`, if there are at most `most` entries and all keys and values are Strings.
 * Returns the number of entries; SIZE_MAX if the Hash has other entries, or is of a subclass, which may make its entries when they are read. */
size_t shim_text_entries(mrb_state *mrb, uint64_t hash, uint64_t *values, size_t most)
{
  struct text_entries entries = { values, 0, most, 0 };
  struct RHash *of = mrb_hash_ptr(cooked(hash));
  if (of->c != mrb->hash_class)
    return SIZE_MAX;
  mrb_hash_foreach(mrb, of, add_text_entry, &entries);
  return entries.has_others ? SIZE_MAX : entries.count;
}

/* The texts of a response. The fields must be those of `RawText` and `RawResponse` in ffi.rs. */
struct shim_text {
  const char *start;
  size_t len;
};

enum { MOST_FIELDS = 16, MOST_PIECES = 4 };

struct shim_response {
  int64_t status;
  size_t fields; /* number of fields: each has its name and its value in `field_texts` */
  size_t pieces; /* number of texts in `piece_texts`, which make the body */
  struct shim_text field_texts[2 * MOST_FIELDS];
  struct shim_text piece_texts[MOST_PIECES];
};

static struct shim_text text_of(mrb_value string)
{
  struct shim_text text = { RSTRING_PTR(string), (size_t)RSTRING_LEN(string) };
  return text;
}

static int add_field(mrb_state *mrb, mrb_value name, mrb_value value, void *data)
{
  struct shim_response *response = data;
  (void)mrb;
  if (response->fields == MOST_FIELDS || !mrb_string_p(name) || !mrb_string_p(value)) {
    response->fields = SIZE_MAX;
    return 1;
  }
  response->field_texts[2 * response->fields] = text_of(name);
  response->field_texts[2 * response->fields + 1] = text_of(value);
  response->fields++;
  return 0;
}

/* Takes a response apart that is an Array of an Integer, a Hash of a few Strings, and an Array of a few Strings. Returns 0 if it has another
 * form. Runs no Ruby. */
int shim_plain_response(mrb_state *mrb, uint64_t bits, struct shim_response *response)
{
  mrb_value value = cooked(bits), body;
  const mrb_value *parts;
  mrb_int i, count;
  if (!mrb_array_p(value) || RARRAY_LEN(value) != 3)
    return 0;
  parts = RARRAY_PTR(value);
  body = parts[2];
  if (!mrb_integer_p(parts[0]) || !mrb_hash_p(parts[1]) || mrb_hash_ptr(parts[1])->c != mrb->hash_class || !mrb_array_p(body))
    return 0;
  count = RARRAY_LEN(body);
  if (count > MOST_PIECES)
    return 0;
  response->status = mrb_integer(parts[0]);
  response->fields = 0;
  mrb_hash_foreach(mrb, mrb_hash_ptr(parts[1]), add_field, response);
  if (response->fields == SIZE_MAX)
    return 0;
  for (i = 0; i < count; i++) {
    mrb_value piece = RARRAY_PTR(body)[i];
    if (!mrb_string_p(piece))
      return 0;
    response->piece_texts[i] = text_of(piece);
  }
  response->pieces = (size_t)count;
  return 1;
}

int shim_is_a(mrb_state *mrb, uint64_t value, uint64_t class)
{
  return mrb_obj_is_kind_of(mrb, cooked(value), mrb_class_ptr(cooked(class)));
}

uint64_t shim_class_of(mrb_state *mrb, uint64_t value)
{
  return raw(mrb_obj_value(mrb_obj_class(mrb, cooked(value))));
}

int shim_arena_save(mrb_state *mrb) { return mrb_gc_arena_save(mrb); }
void shim_arena_restore(mrb_state *mrb, int index) { mrb_gc_arena_restore(mrb, index); }

void shim_register(mrb_state *mrb, uint64_t value)
{
  struct shim_memory *before = use_memory_of(mrb);
  mrb_gc_register(mrb, cooked(value));
  use_memory(before);
}

/* ---- Ruby objects that own objects of Rust ---- */

extern void h2o_mruby_drop(void *object);

static void drop_object(mrb_state *mrb, void *object)
{
  (void)mrb;
  if (object)
    h2o_mruby_drop(object);
}

static const struct mrb_data_type object_type = { "Object of Rust", drop_object };

/* The object of Rust that the value owns; NULL if it owns none. */
void *shim_object(uint64_t bits)
{
  mrb_value value = cooked(bits);
  if (mrb_type(value) != MRB_TT_DATA || DATA_TYPE(value) != &object_type)
    return NULL;
  return DATA_PTR(value);
}

void shim_set_object(uint64_t value, void *object)
{
  DATA_PTR(cooked(value)) = object;
}

/* ---- functions of Rust that Ruby calls ---- */

struct shim_call {
  uint64_t receiver;
  uint64_t block;
  const uint64_t *arguments;
  size_t count;
  uint64_t result;
};

/* Calls a function of Rust. Returns 0 if `call->result` is the value of the method, 1 if it is the exception to raise, and 2 if the fiber is to
 * wait. */
extern int h2o_mruby_call(mrb_state *mrb, int64_t function, struct shim_call *call);

enum { FEW = 8 };

/* Clears the arguments of the method that waits, which it does not need any more: so the garbage collector can free objects to which only
 * these arguments refer. */
static void forget_arguments(mrb_state *mrb)
{
  mrb_int count = mrb_get_argc(mrb), i;
  mrb_value *slots = mrb->c->ci->stack + 1;
  /* Many arguments, and those of a splat, are in an Array that the script may still use: they are not cleared. */
  if (mrb_get_argv(mrb) != slots)
    return;
  for (i = 0; i < count; i++)
    slots[i] = mrb_nil_value();
}

static mrb_value stub(mrb_state *mrb, mrb_value self)
{
  struct shim_call call;
  const mrb_value *arguments = mrb_get_argv(mrb);
  mrb_int count = mrb_get_argc(mrb);
  mrb_value block = mrb_nil_value();
  mrb_value few[FEW], result;
  int64_t function = mrb_integer(mrb_proc_cfunc_env_get(mrb, 0));
  int status;
  /* Only calls with keywords, which become a Hash, or with a block need this slower function. */
  if (mrb->c->ci->nk > 0 || mrb_block_given_p(mrb))
    mrb_get_args(mrb, "*!&", &arguments, &count, &block);
  if (count > FEW) {
    /* The arguments are copied, since the stack moves when it grows. */
    mrb_value many = mrb_ary_new_from_values(mrb, count, arguments);
    arguments = RARRAY_PTR(many);
  } else {
    memcpy(few, arguments, (size_t)count * sizeof *few);
    arguments = few;
  }
  call.receiver = raw(self);
  call.block = raw(block);
  call.arguments = (const uint64_t *)arguments;
  call.count = (size_t)count;
  call.result = raw(mrb_nil_value());
  status = h2o_mruby_call(mrb, function, &call);
  result = cooked(call.result);
  switch (status) {
  case 0: return result;
  case 2:
    forget_arguments(mrb);
    return mrb_fiber_yield(mrb, 1, &result);
  default: mrb_exc_raise(mrb, result);
  }
}

/* Whether the regular expression of `object` matches a text: 1 or 0; -1 if the search must be done by the method of Rust, which takes all
 * arguments and raises the exception of a search that fails. */
extern int h2o_mruby_is_match(void *object, const char *text, size_t len);

/* The method `match?` of regular expressions and of Strings. Scripts call it for each request, so the usual case, one argument of the usual
 * kind, needs neither the records of a call nor the search for its function. */
static mrb_value is_match(mrb_state *mrb, mrb_value self)
{
  if (mrb_get_argc(mrb) == 1 && mrb->c->ci->nk == 0) {
    mrb_value other = *mrb_get_argv(mrb);
    mrb_value text = mrb_string_p(self) ? self : other;
    void *object = shim_object(raw(mrb_string_p(self) ? other : self));
    if (object && mrb_string_p(text)) {
      int found = h2o_mruby_is_match(object, RSTRING_PTR(text), (size_t)RSTRING_LEN(text));
      if (found >= 0)
        return mrb_bool_value(found);
    }
  }
  return stub(mrb, self);
}

/* Stores the kept regular expression with this source and these flags in `regexp`. Returns whether there is one. */
extern int h2o_mruby_kept_pattern(const char *source, size_t len, const char *flags, size_t flags_len, uint64_t *regexp);

/* `Regexp.compile`, which the code of a literal calls at each evaluation. */
static mrb_value pattern(mrb_state *mrb, mrb_value self)
{
  mrb_int count = mrb_get_argc(mrb);
  if ((count == 1 || count == 2) && mrb->c->ci->nk == 0) {
    const mrb_value *arguments = mrb_get_argv(mrb);
    mrb_value source = arguments[0], flags = arguments[count - 1];
    if (mrb_string_p(source) && mrb_string_p(flags)) {
      size_t flags_len = count == 2 ? (size_t)RSTRING_LEN(flags) : 0;
      uint64_t regexp;
      if (h2o_mruby_kept_pattern(RSTRING_PTR(source), (size_t)RSTRING_LEN(source), RSTRING_PTR(flags), flags_len, &regexp))
        return cooked(regexp);
    }
  }
  return stub(mrb, self);
}

/* The running fiber if it is a strand, that is, of `class`; nil otherwise, since the fibers of scripts cannot wait. `can_wait` is set to whether
 * the strand can wait here: no function of C may be between its first frame and the current one. */
uint64_t shim_current_strand(mrb_state *mrb, uint64_t class, int *can_wait)
{
  struct RFiber *fiber = mrb->c->fib;
  const mrb_callinfo *frame;
  *can_wait = 0;
  if (!fiber || mrb->c == mrb->root_c || fiber->c != mrb_class_ptr(cooked(class)))
    return raw(mrb_nil_value());
  *can_wait = 1;
  for (frame = mrb->c->ci; frame >= mrb->c->cibase; frame--)
    if (frame->cci > 0)
      *can_wait = 0;
  return raw(mrb_obj_value(fiber));
}

/* Resumes a fiber. This is a method, since on the root frame a fiber that yields would leave that frame without its class. */
static mrb_value resume(mrb_state *mrb, mrb_value self)
{
  const mrb_value *arguments = mrb_get_argv(mrb);
  (void)self;
  return mrb_fiber_resume(mrb, arguments[0], mrb_get_argc(mrb) - 1, arguments + 1);
}

/* Runs compiled code like a main program, with `main` as self. */
static mrb_value execute(mrb_state *mrb, mrb_value self)
{
  mrb_value code;
  mrb_get_args(mrb, "o", &code);
  if (mrb_type(code) != MRB_TT_PROC || MRB_PROC_CFUNC_P(mrb_proc_ptr(code)))
    mrb_raise(mrb, E_TYPE_ERROR, "the argument is not compiled code");
  return mrb_exec_irep(mrb, self, mrb_proc_ptr(code));
}

/* Name under which the shim calls GC.generational_mode=, which a script may redefine. */
#define SET_GENERATIONAL "__h2o_generational_mode="

void shim_prepare(mrb_state *mrb, struct shim_watch *of)
{
  struct shim_memory *before = use_memory_of(mrb);
  struct RClass *collector = mrb_module_get(mrb, "GC");
  mrb_define_alias(mrb, mrb_class_ptr(mrb_singleton_class(mrb, mrb_obj_value(collector))), SET_GENERATIONAL, "generational_mode=");
  mrb_define_method(mrb, mrb->object_class, "__h2o_execute", execute, MRB_ARGS_REQ(1));
  mrb_define_singleton_method(mrb, (struct RObject *)mrb->kernel_module, "__h2o_resume", resume, MRB_ARGS_ANY());
  limits_prepare(mrb);
  limits_copy_library(mrb, of);
  use_memory(before);
}

/* ---- compiling scripts ---- */

struct shim_fault {
  int line;
  int column;
  size_t len;
  char message[512];
};

/* ---- collecting garbage in steps ---- */

static void set_generational(mrb_state *mrb, mrb_bool is_on)
{
  mrb_value collector = mrb_obj_value(mrb_module_get(mrb, "GC"));
  mrb_funcall(mrb, collector, SET_GENERATIONAL, 1, mrb_bool_value(is_on));
}

/* Does one step of a collection: some thousand objects. Returns whether the collection has ended. A script may have turned the collector
 * off, or its steps to nothing. */
static mrb_bool collect_step(mrb_state *mrb)
{
  mrb_gc *gc = &mrb->gc;
  gc->disabled = FALSE;
  if (gc->step_ratio < 1)
    gc->step_ratio = 200;
  if (gc->generational && !(gc->full && gc->state != MRB_GC_STATE_ROOT)) {
    /* The generational mode collects young objects in one step, so it is left. If a full collection is due, leaving the mode would do
     * all of it now: the library has taken all objects for young already, so it need not. One that has begun goes on in steps first. */
    gc->full = FALSE;
    set_generational(mrb, FALSE);
    return FALSE;
  }
  mrb_incremental_gc(mrb);
  return !gc->generational && gc->state == MRB_GC_STATE_ROOT;
}

/* ---- operations that may raise exceptions ---- */

/* The operations of `shim_run`. They must have the same order as `Op` in ffi.rs. */
enum op {
  OP_STRING_,
  OP_ARRAY_,
  OP_PUSH_,
  OP_HASH_,
  OP_HASH_SET_,
  OP_HASH_GET_,
  OP_HASH_KEYS_,
  OP_SYMBOL_,
  OP_CALL_,
  OP_YIELD_,
  OP_CLASS_,
  OP_MODULE_,
  OP_CONST_GET_,
  OP_CONST_SET_,
  OP_DEFINE_,
  OP_DEFINE_SINGLETON_,
  OP_DEFINE_MATCH_,
  OP_DEFINE_PATTERN_,
  OP_GLOBAL_GET_,
  OP_GLOBAL_SET_,
  OP_IVAR_GET_,
  OP_IVAR_SET_,
  OP_FLOAT_,
  OP_INTEGER_,
  OP_OBJECT_,
  OP_DATA_CLASS_,
  OP_EXCEPTION_,
  OP_RESUME_,
  OP_LOAD_,
  OP_COMPILE_,
  OP_FREEZE_,
  OP_COLLECT_,
  OP_COLLECT_STEP_,
  OP_END_STEPS_,
  OP_ARRAY_SET_,
  OP_BEGIN_,
  OP_SOURCE_,
  OP_PLAIN_HASH_,
};

struct shim_work {
  mrb_state *mrb;
  int op;
  int failed;
  uint64_t a, b, c;
  const char *text;
  size_t len;
  const uint64_t *values;
  size_t count;
  double number;
  const char *file;
  int line;
  struct shim_fault *fault;
  struct shim_watch *watch;
  void *object;
};

static struct RClass *class_or(mrb_state *mrb, uint64_t bits, struct RClass *other)
{
  mrb_value value = cooked(bits);
  (void)mrb;
  return mrb_nil_p(value) ? other : mrb_class_ptr(value);
}

static mrb_value define(mrb_state *mrb, struct RClass *class, mrb_sym name, mrb_func_t begin, int64_t function)
{
  mrb_value index = mrb_int_value(mrb, function);
  struct RProc *proc = mrb_proc_new_cfunc_with_env(mrb, begin, 1, &index);
  mrb_method_t method;
  MRB_METHOD_FROM_PROC(method, proc);
  mrb_define_method_raw(mrb, class, name, method);
  return mrb_nil_value();
}

/* A new lazy Hash of the class `classes[0]`, whose source is a new object of the class `classes[1]` that owns `work->object`. The source is
 * the entry with the key `key`, since a table of instance variables would cost two more allocations. */
static mrb_value lazy_hash(mrb_state *mrb, struct shim_work *work, const mrb_value *classes, mrb_value key)
{
  mrb_value source = mrb_obj_value(mrb_data_object_alloc(mrb, mrb_class_ptr(classes[1]), NULL, &object_type));
  mrb_value hash = mrb_hash_new(mrb);
  mrb_hash_set(mrb, hash, key, source);
  mrb_hash_ptr(hash)->c = mrb_class_ptr(classes[0]);
  DATA_PTR(source) = work->object;
  work->object = NULL;
  return hash;
}

static mrb_value compile(mrb_state *mrb, struct shim_work *work)
{
  mrbc_context *context = mrbc_context_new(mrb);
  struct mrb_parser_state *parser;
  struct RProc *proc;
  mrb_value result = mrb_nil_value();
  context->capture_errors = TRUE;
  context->lineno = (uint16_t)work->line;
  mrbc_filename(mrb, context, work->file);
  parser = mrb_parser_new(mrb);
  if (!parser) {
    mrbc_context_free(mrb, context);
    mrb_raise(mrb, E_RUNTIME_ERROR, "no memory for the parser");
  }
  parser->s = work->text;
  parser->send = work->text + work->len;
  mrb_parser_parse(parser, context);
  if (parser->nerr > 0 || !parser->tree) {
    work->fault->line = parser->nerr > 0 ? parser->error_buffer[0].lineno : work->line;
    work->fault->column = parser->nerr > 0 ? parser->error_buffer[0].column : 0;
    strncpy(work->fault->message,
            parser->nerr > 0 && parser->error_buffer[0].message ? parser->error_buffer[0].message : "syntax error",
            sizeof work->fault->message - 1);
    work->fault->len = strlen(work->fault->message);
  } else if ((proc = mrb_generate_code(mrb, parser)) != NULL) {
    MRB_PROC_SET_TARGET_CLASS(proc, mrb->object_class);
    limits_isolate(mrb, work->watch, (mrb_irep *)proc->body.irep);
    result = mrb_obj_value(proc);
  } else {
    work->fault->line = work->line;
    strcpy(work->fault->message, "mruby cannot generate code for this script");
    work->fault->len = strlen(work->fault->message);
  }
  mrb_parser_free(parser);
  mrbc_context_free(mrb, context);
  return result;
}

static mrb_value run(mrb_state *mrb, void *data)
{
  struct shim_work *work = data;
  mrb_value a = cooked(work->a), b = cooked(work->b), c = cooked(work->c);
  const mrb_value *values = (const mrb_value *)work->values;
  mrb_int count = (mrb_int)work->count;
#define NAME mrb_intern(mrb, work->text, work->len)
  switch (work->op) {
  case OP_STRING_: return mrb_str_new(mrb, work->text, (mrb_int)work->len);
  case OP_ARRAY_: return mrb_ary_new_from_values(mrb, count, values);
  case OP_PUSH_: mrb_ary_push(mrb, a, b); return a;
  case OP_ARRAY_SET_: mrb_ary_set(mrb, a, (mrb_int)work->count, b); return b;
  case OP_HASH_: return mrb_hash_new_capa(mrb, count);
  case OP_HASH_SET_: mrb_hash_set(mrb, a, b, c); return a;
  case OP_HASH_GET_: return mrb_hash_get(mrb, a, b);
  case OP_HASH_KEYS_:
    /* A subclass of Hash may make its entries when they are read, so its method is called. */
    return mrb_hash_ptr(a)->c == mrb->hash_class ? mrb_hash_keys(mrb, a) : mrb_funcall(mrb, a, "keys", 0);
  case OP_SOURCE_: return mrb_hash_fetch(mrb, a, c, mrb_nil_value());
  case OP_PLAIN_HASH_: {
    mrb_value before[2];
    mrb_hash_delete_key(mrb, a, c);
    before[0] = mrb_hash_keys(mrb, a);
    before[1] = mrb_hash_values(mrb, a);
    b = mrb_ary_new_from_values(mrb, 2, before);
    mrb_hash_clear(mrb, a);
    mrb_hash_ptr(a)->c = mrb->hash_class;
    return b;
  }
  case OP_SYMBOL_: return mrb_symbol_value(NAME);
  case OP_CALL_: {
    mrb_sym name = mrb_nil_p(b) ? NAME : mrb_symbol(b);
    return mrb_funcall_with_block(mrb, a, name, count, values, c);
  }
  case OP_YIELD_: return mrb_yield_argv(mrb, a, count, values);
  case OP_CLASS_: {
    struct RClass *outer = class_or(mrb, work->a, mrb->object_class);
    struct RClass *super = class_or(mrb, work->b, mrb->object_class);
    return mrb_obj_value(mrb_define_class_under(mrb, outer, mrb_sym_name(mrb, NAME), super));
  }
  case OP_DATA_CLASS_: MRB_SET_INSTANCE_TT(mrb_class_ptr(a), MRB_TT_DATA); return a;
  case OP_MODULE_:
    return mrb_obj_value(
        mrb_define_module_under(mrb, class_or(mrb, work->a, mrb->object_class), mrb_sym_name(mrb, NAME)));
  case OP_CONST_GET_:
    return mrb_const_get(mrb, mrb_nil_p(a) ? mrb_obj_value(mrb->object_class) : a, NAME);
  case OP_CONST_SET_: {
    mrb_const_set(mrb, mrb_nil_p(a) ? mrb_obj_value(mrb->object_class) : a, NAME, b);
    return b;
  }
  case OP_DEFINE_: return define(mrb, mrb_class_ptr(a), NAME, stub, (int64_t)work->count);
  case OP_DEFINE_SINGLETON_:
    return define(mrb, mrb_class_ptr(mrb_singleton_class(mrb, a)), NAME, stub, (int64_t)work->count);
  case OP_DEFINE_MATCH_: return define(mrb, mrb_class_ptr(a), NAME, is_match, (int64_t)work->count);
  case OP_DEFINE_PATTERN_:
    return define(mrb, mrb_class_ptr(mrb_singleton_class(mrb, a)), NAME, pattern, (int64_t)work->count);
  case OP_GLOBAL_GET_: return mrb_gv_get(mrb, NAME);
  case OP_GLOBAL_SET_: mrb_gv_set(mrb, NAME, a); return a;
  case OP_IVAR_GET_: return mrb_iv_get(mrb, a, NAME);
  case OP_IVAR_SET_: mrb_iv_set(mrb, a, NAME, b); return b;
  case OP_FLOAT_: return mrb_float_value(mrb, work->number);
  case OP_INTEGER_: return mrb_int_value(mrb, (mrb_int)work->a);
  case OP_OBJECT_: return mrb_obj_value(mrb_data_object_alloc(mrb, mrb_class_ptr(a), NULL, &object_type));
  case OP_EXCEPTION_: return mrb_exc_new(mrb, mrb_class_ptr(a), work->text, (mrb_int)work->len);
  case OP_BEGIN_: c = lazy_hash(mrb, work, values, c); /* fall through */
  case OP_RESUME_: {
    mrb_value arguments[2];
    arguments[0] = a;
    arguments[1] = c;
    return mrb_funcall_argv(mrb, mrb_obj_value(mrb->kernel_module), mrb_symbol(b), 2, arguments);
  }
  case OP_LOAD_: {
    mrbc_context *context = mrbc_context_new(mrb);
    mrb_value result;
    mrb_value exception;
    context->capture_errors = TRUE;
    context->lineno = (uint16_t)work->line;
    mrbc_filename(mrb, context, work->file);
    result = mrb_load_nstring_cxt(mrb, work->text, work->len, context);
    mrbc_context_free(mrb, context);
    if (mrb->exc) {
      exception = mrb_obj_value(mrb->exc);
      mrb->exc = NULL;
      mrb_exc_raise(mrb, exception);
    }
    return result;
  }
  case OP_COMPILE_: return compile(mrb, work);
  case OP_FREEZE_: return mrb_obj_freeze(mrb, a);
  case OP_COLLECT_:
    mrb->gc.disabled = FALSE;
    mrb_full_gc(mrb);
    limits_sweep(mrb, work->watch);
    return mrb_nil_value();
  case OP_COLLECT_STEP_: return mrb_bool_value(collect_step(mrb));
  case OP_END_STEPS_: set_generational(mrb, TRUE); return mrb_nil_value();
  default: return mrb_nil_value();
  }
#undef NAME
}

uint64_t shim_run(struct shim_work *work)
{
  mrb_bool failed = FALSE;
  struct shim_memory *before = use_memory_of(work->mrb);
  mrb_value result = mrb_protect_error(work->mrb, run, work, &failed);
  use_memory(before);
  work->failed = failed;
  return raw(result);
}
