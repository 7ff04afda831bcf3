# These methods read the Hashes that are their arguments without calling methods of them, so lazy Hashes are filled
# first.
class Hash
  [:merge, :merge!, :update, :replace, :==].each do |name|
    core = "__core_#{name}".to_sym
    alias_method core, name
    define_method(name) do |*others, &block|
      others.each { |other| other.to_h if H2O::Env === other }
      __send__(core, *others, &block)
    end
  end
end

module H2O
  # Runs the method `each` of a script's body, and passes each chunk to the sink.
  module Streaming
    def self.call(pair)
      body, sink = pair
      begin
        body.each { |chunk| sink.write(chunk) }
        raise "downstream HTTP closed" if sink.closed?
      ensure
        H2O.__close(body) if sink.closes?
      end
      nil
    end
  end

  def self.__close(body)
    body.close if body.respond_to?(:close)
  rescue Exception
    nil
  end

  # Returns the values that `each` yields as an Array.
  def self.__collect(object)
    found = []
    object.each { |*values| found << (values.size == 1 ? values[0] : values) }
    found
  end

  def self.__check_app(app)
    ConfigurationContext.instance.call_post_handler_generation_hooks(app)
  end

  # The Hash that describes a request. An entry is made when the script reads it. Any other method of the Hash makes all
  # entries first; after that the Hash is an ordinary Hash.
  class Env < Hash
    kept = [:[], :default, :__fill, :__send__, :__id__, :object_id, :equal?, :!, :nil?, :is_a?, :kind_of?, :respond_to?, :frozen?,
            :method_missing, :respond_to_missing?, :initialize]
    (Hash.instance_methods - kept).each do |name|
      define_method(name) do |*arguments, &block|
        __fill
        __send__(name, *arguments, &block)
      end
    end
  end

  class ErrorStream
    def puts(*objects)
      objects.each { |object| write(object) }
      nil
    end

    def flush
      self
    end
  end

  module WholeBody
    # The whole body as one String.
    def join
      whole = ""
      each { |chunk| whole << chunk }
      whole
    end
  end

  # Objects of the server that scripts get as Procs.
  module AsProc
    def to_proc
      object = self
      lambda { |*arguments| object.call(*arguments) }
    end
  end

  [EarlyHints, RoundTrip, EncryptedHello].each { |kind| kind.include(AsProc) }

  class HttpRequest
    # Waits for the head of the response. Returns its status, header fields and body.
    def join
      @response ||= H2O.__value(__join)
    end
  end

  class HttpInputStream
    include WholeBody

    def each
      __begin
      begin
        while chunk = H2O.__value(__read)
          yield chunk
        end
      ensure
        __end
      end
    end

    # The body of a response without a body.
    class Empty < self
      def each
      end

      def join
        ""
      end
    end
  end

  # The handlers behind the running one in its path, as an app.
  def self.next
    @next ||= App.__new(true)
  end

  # The request table of the server, as an app.
  def self.reprocess
    @reprocess ||= App.__new(false)
  end

  class App
    def call(env)
      request(env).join
    end
  end

  class AppRequest
    def join
      @response ||= H2O.__value(__join)
    end
  end

  class AppInputStream
    include WholeBody

    def each
      while chunk = H2O.__value(__read)
        yield chunk
      end
    # After `break`, the next `each` goes on where this one has stopped. A wait that is refused leaves the body as it is, too.
    rescue Exception => error
      __end unless FiberError === error
      raise error
    end
  end

  # A queue by which one strand (fiber) passes objects to another.
  class Channel
    def initialize
      @queue = []
      @waiting = []
    end

    def push(object)
      @queue.push(object)
      waiting = @waiting.shift
      waiting.resume if waiting
      nil
    end

    def shift
      Parked.new.wait_in(@waiting) while @queue.empty?
      @queue.shift
    end
  end
end

class InputStream
  include Enumerable

  # Number of octets of a request body in which `gets` searches at a time.
  PIECE = 65536

  def initialize(text)
    raise TypeError, "#{text.nil? ? "nil" : text.class} cannot be converted to String" unless text.is_a?(String)
    @text = text.dup
    @size = @text.bytesize
    @pos = 0
  end

  def self.__of(request)
    stream = new("")
    stream.__read_from(request)
    stream
  end

  def __read_from(request)
    @text = nil
    @request = request
    @size = request.size
  end

  def read(length = nil, buffer = nil)
    __check
    raise ArgumentError, "negative length #{length} given" if length && length < 0
    rest = @size - @pos
    return length ? nil : "" if rest == 0
    taken = length && length < rest ? length : rest
    piece = __slice(@pos, taken)
    @pos += taken
    buffer ? buffer << piece : piece
  end

  def gets
    __check
    return nil if @pos >= @size
    line_end = __index("\n")
    read((line_end ? line_end + 1 : @size) - @pos)
  end

  def each
    rewind
    while line = gets
      yield line
    end
    self
  end

  def rewind
    __check
    @pos = 0
    self
  end

  def byteindex(byte)
    raise ArgumentError, "byte out of range" unless byte >= 0 && byte <= 255
    __check
    return nil if @pos >= @size
    (__index(byte.chr) || @size) - @pos
  end

  # Moves to the end. Returns the request and the position before; nil if there is no request whose body can still be read.
  def __take
    return nil if !@request || @request.ended?
    from = @pos
    @pos = @size
    [@request, from]
  end

  def __check
    raise IOError, "stream closed" if @request && @request.ended?
  end

  # The position of the octet from the current position on; nil if there is none.
  def __index(octet)
    at = @pos
    while at < @size
      piece, start = __piece(at)
      found = piece.index(octet, at - start)
      return start + found if found
      at = start + piece.bytesize
    end
  end

  def __slice(from, length)
    return @text.byteslice(from, length) if @text
    if @piece && from >= @piece_start && from + length <= @piece_start + @piece.bytesize
      @piece.byteslice(from - @piece_start, length)
    else
      __part(from, length)
    end
  end

  # A piece of the input that has the octet at this position, and the position of the piece.
  def __piece(at)
    return [@text, 0] if @text
    unless @piece && at >= @piece_start && at < @piece_start + @piece.bytesize
      # `__part` may wait, so both variables are set after it.
      @piece = __part(at, PIECE)
      @piece_start = at
    end
    [@piece, @piece_start]
  end

  def __part(from, length)
    part = H2O.__value(@request.__part(from, length))
    # The request may have ended during the wait before the first octet was read.
    raise IOError, "stream closed" if part.empty? && length > 0
    part
  end
end
