class SystemCallError < StandardError
  # A SystemCallError itself has no number; subclasses have one in a constant of the same name.
  Errno = nil

  # `SystemCallError.new(detail, number)` makes an object of the class for this number.
  def self.new(detail = nil, number = nil)
    detail, number = nil, detail if Integer === detail
    name = equal?(SystemCallError) && number ? H2O.__errno_name(number) : nil
    name ? ::Errno.const_get(name.to_sym).new(detail) : super(detail, number)
  end

  # The library calls this method to raise the errors of its files.
  def self._sys_fail(number, detail = nil)
    raise new(detail, number)
  end

  attr_reader :errno

  def initialize(detail = nil, number = nil)
    @errno = number || self.class::Errno
    text = @errno ? H2O.__strerror(@errno) : "unknown error"
    super(detail ? "#{text} - #{detail}" : text)
  end
end

# The class of an error is made when its name is first used.
module Errno
  def self.const_missing(name)
    number = H2O.__errno(name.to_s)
    return super unless number
    error = Class.new(SystemCallError)
    const_set(name, error)
    error.const_set(:Errno, number)
    error
  end
end
