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
      while @queue.empty?
        parked = Parked.new
        @waiting.push(parked)
        parked.wait
      end
      @queue.shift
    end
  end
end

class InputStream
  include Enumerable

  def initialize(text)
    raise TypeError, "#{text.class} cannot be converted to String" unless text.is_a?(String)
    @text = text.dup
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
  end

  def read(length = nil, buffer = nil)
    text = __text
    rest = text.bytesize - @pos
    return length ? nil : "" if rest == 0
    taken = length && length < rest ? length : rest
    piece = text.byteslice(@pos, taken)
    @pos += taken
    buffer ? buffer << piece : piece
  end

  def gets
    text = __text
    return nil if @pos >= text.bytesize
    line_end = text.index("\n", @pos)
    length = (line_end ? line_end + 1 : text.bytesize) - @pos
    read(length)
  end

  def each
    rewind
    while line = gets
      yield line
    end
    self
  end

  def rewind
    __text
    @pos = 0
    self
  end

  def byteindex(byte)
    raise ArgumentError, "byte out of range" unless byte >= 0 && byte <= 255
    text = __text
    return nil if @pos >= text.bytesize
    at = text.index(byte.chr, @pos)
    (at || text.bytesize) - @pos
  end

  def __text
    raise IOError, "stream closed" if @request && @request.ended?
    @text ||= @request.body
  end
end
