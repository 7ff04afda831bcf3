//! Tests that the classes and methods that scripts find in H2O's Ruby exist, one by one.

use crate::tests::{evaluate, vm};

/// Instance methods, by class.
const INSTANCE: &[(&str, &str)] = &[
    ("Regexp", "match match? =~ === == source options casefold? inspect to_s"),
    ("MatchData", "[] begin end offset captures to_a to_s pre_match post_match size length string regexp"),
    (
        "String",
        "=~ match match? sub gsub sub! gsub! scan split [] slice []= slice! index rindex start_with? end_with? partition rpartition
         include? tr tr! tr_s delete squeeze count unpack unpack1 casecmp casecmp? downcase upcase capitalize swapcase bytes
         byteslice bytesize getbyte setbyte chars lines each_line each_char each_byte codepoints ljust rjust center strip lstrip rstrip
         chomp chop insert prepend replace reverse hex oct ord chr succ next to_i to_f to_sym intern dump % * + << <=> == empty? length size upto
         delete_prefix delete_suffix byteindex byterindex concat clear freeze to_json",
    ),
    (
        "Array",
        "pack map join include? each_slice each_cons product transpose combination permutation flatten flatten! compact uniq sort sort!
         first last push pop shift unshift insert delete delete_at delete_if index rindex zip rotate sample shuffle take drop select reject group_by
         inject each_with_index each_with_object sort_by min max minmax partition tally any? all? none? one? find find_index count cycle to_h assoc rassoc
         dig fetch fill values_at bsearch union difference intersection & | - + * <=> chain lazy to_json",
    ),
    (
        "Hash",
        "map to_h merge merge! update select reject key? has_key? include? member? value? has_value? fetch fetch_values delete delete_if keep_if each each_key each_value
         each_pair keys values invert key store [] []= default default_proc dig size length empty? sort_by any? all? find min_by max_by group_by
         transform_keys transform_values compact slice except flatten rehash replace to_a values_at shift clear < <= > >= to_json",
    ),
    ("Integer", "+ - * / % ** & | ^ ~ << >> <=> abs chr times upto downto step succ next divmod floor ceil round truncate to_s to_i to_f pow zero? positive? negative? to_json"),
    ("Float", "+ - * / % ** floor ceil round truncate nan? infinite? finite? divmod to_s to_i to_f abs to_json"),
    ("Symbol", "to_s to_sym to_proc length size <=> upcase downcase capitalize empty? to_json"),
    ("Proc", "call [] === << >> arity lambda? curry parameters yield to_proc source_location"),
    ("Method", "call [] unbind arity name owner receiver to_proc parameters source_location super_method << >>"),
    ("Range", "each to_a include? member? cover? first last min max begin end exclude_end? size"),
    ("Comparable", "< <= == > >= between? clamp"),
    (
        "Enumerable",
        "map collect flat_map select filter reject find detect find_index inject reduce each_slice each_cons each_with_index each_with_object
         group_by partition sort sort_by min max min_by max_by minmax zip take take_while drop drop_while first count tally uniq to_a to_h lazy
         chain cycle include? any? all? none? one? filter_map reverse_each entries",
    ),
    ("Enumerator", "next peek rewind with_index with_object + each"),
    ("Enumerator::Lazy", "map select reject first take take_while drop drop_while flat_map zip uniq force"),
    ("Exception", "message backtrace inspect to_s exception set_backtrace"),
    ("NameError", "name"),
    ("KeyError", "message"),
    ("StopIteration", "result"),
    ("SystemCallError", "errno message"),
    ("SystemExit", "status"),
    ("UncaughtThrowError", "tag value"),
    (
        "Time",
        "to_i to_f usec year month mon day mday hour min sec wday yday + - <=> == zone utc utc? gmtime getutc localtime getlocal to_s asctime ctime dst? monday? sunday?",
    ),
    ("Random", "rand srand bytes"),
    ("Struct", "to_a to_h members each each_pair [] []= values values_at select size == dig"),
    ("Complex", "real imaginary abs conjugate + - * /"),
    ("Rational", "numerator denominator to_f to_i to_r + - * / **"),
    (
        "Digest::Base",
        "update << digest digest! hexdigest to_s hexdigest! reset file block_length digest_length length size == dup",
    ),
    ("Digest::HMAC", "update << digest hexdigest block_length digest_length"),
    ("Dir", "read each rewind seek pos= tell pos close"),
    (
        "File::Stat",
        "dev dev_major dev_minor ino mode nlink uid gid rdev rdev_major rdev_minor size blksize blocks atime mtime ctime birthtime
         size? zero? file? directory? symlink? chardev? blockdev? pipe? socket? owned? owned_real? grpowned? readable? readable_real? writable?
         writable_real? executable? executable_real? world_readable? world_writable? setuid? setgid? sticky? ftype <=>",
    ),
    (
        "IO",
        "read write print puts printf gets getc getbyte readline readlines readchar each each_line each_byte each_char eof? eof close closed? close_write flush fileno
         pos pos= rewind seek tell sync sync= sysread syswrite sysseek tty? isatty ungetc stat pread pwrite << readbyte",
    ),
    ("File", "path size flock truncate mtime"),
    ("TCPSocket", "addr peeraddr recv send"),
    ("Module", "attr_accessor attr_reader attr_writer define_method include extend const_get const_set constants instance_methods method_defined? module_function
         class_eval alias_method remove_method undef_method ancestors class_variable_get name instance_method"),
    ("Class", "new allocate superclass subclasses"),
    ("Object", "to_json instance_variable_get instance_variable_set instance_eval instance_exec method methods singleton_methods define_singleton_method
         respond_to? send __send__ tap then yield_self itself dup clone freeze frozen? is_a? kind_of? instance_of? extend to_enum enum_for object_id acl"),
    ("Kernel", "require load exit usleep catch throw rand srand sprintf format printf print puts p Integer Float String Array Hash Rational Complex
         loop lambda proc raise eval caller block_given? __method__ task open gets instance_variables"),
    ("Fiber", "resume alive? transfer"),
];

/// Methods of objects themselves: of classes, modules and `ENV`.
const SINGLETON: &[(&str, &str)] = &[
    ("Regexp", "new compile escape quote last_match last_match= version"),
    ("JSON", "parse load generate stringify dump pretty_generate"),
    ("Digest::MD5", "digest hexdigest file new"),
    ("Digest::SHA1", "digest hexdigest file new"),
    ("Digest::SHA256", "digest hexdigest file new"),
    ("Digest::HMAC", "digest hexdigest new"),
    (
        "ENV",
        "[] []= store fetch delete key? has_key? include? member? keys values size clear to_a to_hash to_s inspect",
    ),
    (
        "Dir",
        "open new entries foreach exist? exists? mkdir delete rmdir unlink chdir getwd pwd chroot",
    ),
    (
        "File",
        "open read exist? file? directory? join basename dirname extname expand_path realpath size unlink delete rename stat lstat
         foreach symlink symlink? readlink chmod umask zero? size? pipe? socket? path new",
    ),
    ("File::Stat", "new"),
    ("IO", "popen select open read pipe sysopen"),
    ("SystemCallError", "new _sys_fail"),
    ("Time", "now at gm utc local mktime"),
    ("Random", "rand srand new bytes"),
    ("Struct", "new"),
    ("Math", "sqrt cbrt hypot sin cos tan asin acos atan atan2 sinh cosh tanh exp log log2 log10 erf erfc"),
    ("ObjectSpace", "each_object count_objects"),
    ("GC", "start enable disable interval_ratio step_ratio generational_mode"),
    ("Fiber", "yield current new"),
    ("Enumerator", "produce new"),
    ("Addrinfo", "tcp udp getaddrinfo"),
    ("TCPSocket", "open new"),
    ("TCPServer", "open new"),
    ("UNIXSocket", "open new pair"),
    ("UDPSocket", "open new"),
];

/// Names of constants.
const CONSTANTS: &str = "Regexp::IGNORECASE Regexp::EXTENDED Regexp::MULTILINE OnigRegexp OnigMatchData RegexpError JSON::JSONError
    JSON::ParserError Errno::ENOENT Errno::EACCES Errno::ECONNREFUSED Errno::NOERROR Errno::ENOENT::Errno LoadError IOError EOFError
    KeyError FrozenError SystemStackError NoMemoryError FloatDomainError NotImplementedError LocalJumpError FiberError StopIteration
    RUBY_VERSION MRUBY_VERSION MRUBY_RELEASE_DATE RUBY_ENGINE Socket Addrinfo UDPSocket H2O::ConfigurationContext H2O::ACL STDIN STDOUT STDERR";

/// The entries of `table` that do not exist, one per line.
fn missing(script: impl Fn(&str, &str) -> String, table: &[(&str, &str)]) -> Vec<String> {
    let vm = vm();
    let mut missing = Vec::new();
    for (class, methods) in table {
        for method in methods.split_whitespace() {
            if evaluate(&vm, &script(class, method)) != "true" {
                missing.push(format!("{class} {method}"));
            }
        }
    }
    missing
}

#[test]
fn every_method_of_instances_is_there() {
    let is_there = |class: &str, method: &str| format!("{class}.method_defined?(:{method:?})");
    assert_eq!(missing(is_there, INSTANCE), [""; 0]);
}

#[test]
fn every_method_of_classes_and_modules_is_there() {
    let is_there = |object: &str, method: &str| format!("{object}.respond_to?(:{method:?})");
    assert_eq!(missing(is_there, SINGLETON), [""; 0]);
}

#[test]
fn every_constant_is_there() {
    let is_there = |_: &str, constant: &str| format!("{constant}; true");
    assert_eq!(missing(is_there, &[("", CONSTANTS)]), [""; 0]);
}
