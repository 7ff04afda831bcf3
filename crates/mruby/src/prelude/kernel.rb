class SystemExit < Exception
  attr_reader :status

  def initialize(status = 0, message = "exit")
    @status = status
    super(message)
  end
end

class UncaughtThrowError < ArgumentError
  attr_reader :tag, :value

  def initialize(tag = nil, value = nil)
    @tag = tag
    @value = value
    super("uncaught throw #{tag.inspect}")
  end
end

module Kernel
  # Ends the job that the script is doing, but not the server.
  def exit(status = true)
    raise SystemExit.new(status == true ? 0 : status == false ? 1 : status)
  end
  alias exit! exit

  # Waits for `time` microseconds. Returns how many have passed, in steps of whole seconds.
  def usleep(time)
    sleep(time / 1_000_000.0) * 1_000_000
  end

  def catch(tag = Object.new)
    yield tag
  rescue UncaughtThrowError => e
    raise e unless e.tag.equal?(tag)
    e.value
  end

  def throw(tag, value = nil)
    raise UncaughtThrowError.new(tag, value)
  end
end

class Integer
  # With a modulus, computes the power by squaring: no intermediate number exceeds the square of the modulus.
  def pow(exponent, modulus = nil)
    return self**exponent unless modulus
    raise ArgumentError, "the exponent must not be negative" if exponent < 0
    result = 1 % modulus
    base = self % modulus
    while exponent > 0
      result = result * base % modulus if exponent & 1 == 1
      base = base * base % modulus
      exponent >>= 1
    end
    result
  end
end

class String
  alias byteindex index
  alias byterindex rindex
end

class Class
  def subclasses
    found = []
    ObjectSpace.each_object(Class) { |known| found << known if known.superclass.equal?(self) && !known.singleton_class? }
    found
  end
end

class Enumerator
  # An Enumerator of the elements of several objects, one object after another.
  class Chain
    include Enumerable

    def initialize(*parts)
      @parts = parts
    end

    def each(*arguments, &block)
      return to_enum(:each, *arguments) unless block
      @parts.each { |part| part.each(*arguments, &block) }
      self
    end

    def size
      @parts.inject(0) { |sum, part| sum + part.size }
    end

    def +(other)
      Chain.new(self, other)
    end
  end

  def +(other)
    Chain.new(self, other)
  end
end

module Enumerable
  def chain(*others)
    Enumerator::Chain.new(self, *others)
  end
end

class Rational
  def **(exponent)
    return to_f**exponent unless Integer === exponent
    top = numerator**exponent.abs
    bottom = denominator**exponent.abs
    exponent < 0 ? Rational(bottom, top) : Rational(top, bottom)
  end
end
