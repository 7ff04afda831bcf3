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

# The directives `B` and `b` of `pack` and `unpack`, which mruby reads, but ignores: strings of bits, from the highest or from the lowest one.
module H2O
  module BitStrings
    def self.are_in?(template)
      String === template && (template.include?("B") || template.include?("b"))
    end

    def self.is?(letter)
      letter == "B" || letter == "b"
    end

    # The directives of a template: for each its letter, its text, and its count, which is `:all` or a number.
    def self.directives(template)
      found = []
      at = 0
      while at < template.size
        letter = template[at]
        from = at
        at += 1
        at += 1 while at < template.size && "_!<>".include?(template[at])
        if template[at] == "*"
          at += 1
          count = :all
        else
          first = at
          at += 1 while at < template.size && ("0".."9").include?(template[at])
          count = first == at ? 1 : template[first...at].to_i
        end
        found << [letter, template[from...at], count]
      end
      found
    end

    # How many objects a directive of `pack` takes if `rest` are left.
    def self.objects(letter, count, rest)
      case letter
      when "A", "a", "Z", "B", "b", "H", "h", "M", "m" then 1
      when "x", "X", "@", " ", "\n", "\t" then 0
      else count == :all ? rest : count
      end
    end

    def self.write(bits, letter, count)
      bits = bits[0, count] unless count == :all
      octets = []
      0.step(bits.size - 1, 8) do |from|
        eight = bits[from, 8]
        eight << "0" while eight.size < 8
        eight = eight.reverse if letter == "b"
        octets << eight.bytes.inject(0) { |octet, bit| octet * 2 + (bit & 1) }
      end
      octets.pack("C*")
    end

    def self.read(octets, letter, count)
      bits = ""
      octets.each_byte do |octet|
        eight = octet.to_s(2).rjust(8, "0")
        bits << (letter == "b" ? eight.reverse : eight)
      end
      count == :all ? bits : bits[0, count]
    end
  end
end

class Array
  alias __core_pack pack

  def pack(template)
    return __core_pack(template) unless H2O::BitStrings.are_in?(template)
    objects = dup
    at = 0
    directives = H2O::BitStrings.directives(template).map do |letter, text, count|
      if H2O::BitStrings.is?(letter)
        raise ArgumentError, "too few arguments" if at >= objects.size
        raise TypeError, "#{objects[at].nil? ? "nil" : objects[at].class} cannot be converted to String" unless objects[at].is_a?(String)
        objects[at] = H2O::BitStrings.write(objects[at], letter, count)
        text = "a*"
      end
      at += H2O::BitStrings.objects(letter, count, objects.size - at)
      text
    end
    objects.__core_pack(directives.join)
  end
end

class String
  alias __core_unpack unpack

  def unpack(template)
    return __core_unpack(template) unless H2O::BitStrings.are_in?(template)
    before = ""
    found = []
    H2O::BitStrings.directives(template).each do |letter, text, count|
      if H2O::BitStrings.is?(letter)
        found << [before.empty? ? 0 : __core_unpack(before).size, letter, count]
        text = count == :all ? "a*" : "a#{(count + 7) / 8}"
      end
      before << text
    end
    objects = __core_unpack(before)
    found.each do |index, letter, count|
      objects[index] = H2O::BitStrings.read(objects[index], letter, count) if index < objects.size
    end
    objects
  end

  alias __core_unpack1 unpack1

  def unpack1(template)
    return __core_unpack1(template) unless H2O::BitStrings.are_in?(template)
    unpack(template)[0]
  end
end
