# A set of blocks of IPv4 addresses, stored as a binary tree of the bits of their prefixes.
class TrieAddr
  def initialize
    @root = [nil, nil]
  end

  # Adds a block "a.b.c.d/len", an address "a.b.c.d", or an Array of them.
  def add(blocks)
    (Array === blocks ? blocks : [blocks]).each { |block| add_block(block) }
    self
  end

  # Whether the address is in a block of the set. A text that is not an IPv4 address is in none.
  def match?(address)
    number = TrieAddr.number(address)
    return false unless number
    node = @root
    31.downto(0) do |bit|
      node = node[number >> bit & 1]
      return node == true unless Array === node
    end
    false
  end

  # The address as an Integer, or nil if it is not an IPv4 address.
  def self.number(address)
    parts = address.to_s.split(".", -1)
    return nil unless parts.size == 4
    parts.inject(0) do |number, part|
      octet = part.to_i
      return nil unless octet >= 0 && octet <= 255 && octet.to_s == part
      number << 8 | octet
    end
  end

  private

  # The block may come from a line of a file, with blanks, a line end or a remark behind it.
  def add_block(block)
    address, length = block.split("/", 2)
    parts = address.to_s.split(".", -1)
    invalid = ArgumentError.new("invalid IPv4 address: #{block}")
    raise invalid unless parts.size == 4
    number = parts.inject(0) do |number, part|
      octet = TrieAddr.leading(part)
      raise invalid unless octet && octet <= 255
      number << 8 | octet
    end
    length = length ? TrieAddr.leading(length) : 32
    raise invalid unless length && length <= 32
    if length == 0
      @root = [true, true]
      return
    end
    node = @root
    31.downto(33 - length) do |bit|
      side = number >> bit & 1
      return if node[side] == true
      node = node[side] ||= [nil, nil]
    end
    node[number >> (32 - length) & 1] = true
  end

  # The number at the beginning of the text, or nil if there is none.
  def self.leading(text)
    number = text.strip
    number[0] && "0123456789".include?(number[0]) ? number.to_i : nil
  end
end
