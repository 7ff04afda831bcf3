module Digest
  class Base
    class << self
      def digest(text)
        new.update(text).digest
      end

      def hexdigest(text)
        new.update(text).hexdigest
      end

      def file(path)
        new.file(path)
      end
    end

    def initialize
      @data = ""
    end

    def initialize_copy(other)
      @data = other.__data.dup
    end

    def __data
      @data
    end

    def update(text)
      @data << text
      self
    end
    alias << update

    def file(path)
      update(File.open(path, "rb") { |file| file.read })
    end

    def reset
      @data = ""
      self
    end

    def digest
      Digest.__digest(self.class::ALGORITHM, @data)
    end

    def digest!
      digest.tap { reset }
    end

    def hexdigest
      digest.unpack("H*")[0]
    end
    alias to_s hexdigest

    def hexdigest!
      hexdigest.tap { reset }
    end

    def block_length
      self.class::BLOCK_LENGTH
    end

    def digest_length
      self.class::DIGEST_LENGTH
    end
    alias length digest_length
    alias size digest_length

    def ==(other)
      Base === other ? digest == other.digest : hexdigest == other
    end
  end

  # Each row: name of the algorithm, length of its blocks, length of the digest in octets.
  [["MD5", 64, 16], ["SHA1", 64, 20], ["SHA256", 64, 32], ["SHA384", 128, 48], ["SHA512", 128, 64]].each do |name, block, length|
    algorithm = Class.new(Base)
    algorithm.const_set(:ALGORITHM, name)
    algorithm.const_set(:BLOCK_LENGTH, block)
    algorithm.const_set(:DIGEST_LENGTH, length)
    const_set(name.to_sym, algorithm)
  end

  # Message authentication codes (RFC 2104).
  class HMAC < Base
    def self.digest(data, key, algorithm)
      new(key, algorithm).update(data).digest
    end

    def self.hexdigest(data, key, algorithm)
      new(key, algorithm).update(data).hexdigest
    end

    def initialize(key, algorithm)
      super()
      @key = key
      @algorithm = algorithm
    end

    def digest
      block = block_length
      key = @key.bytesize > block ? @algorithm.digest(@key) : @key
      pad = key.bytes + [0] * (block - key.bytesize)
      inner = pad.map { |octet| octet ^ 0x36 }.pack("C*")
      outer = pad.map { |octet| octet ^ 0x5c }.pack("C*")
      @algorithm.digest(outer + @algorithm.digest(inner + @data))
    end

    def block_length
      @algorithm::BLOCK_LENGTH
    end

    def digest_length
      @algorithm::DIGEST_LENGTH
    end
    alias length digest_length
    alias size digest_length
  end
end
