module H2O
  class Redis
    class BaseError < RuntimeError
    end

    class ConnectionError < BaseError
    end

    class TimeoutError < ConnectionError
    end

    class ConnectTimeoutError < TimeoutError
    end

    class CommandTimeoutError < TimeoutError
    end

    class ProtocolError < BaseError
    end

    class UnknownError < BaseError
    end

    class UnavailableCommandError < BaseError
    end

    class CommandError < BaseError
      attr_reader :command

      def initialize(text, command)
        super("#{text} (command: #{command.args.join(" ")})")
        @command = command
      end
    end

    # An error that Redis has sent instead of a reply.
    class ReplyError
      attr_reader :text

      def initialize(text)
        @text = text
      end
    end

    class Command
      attr_reader :args

      # While a command is alive, it refers to its connection, so that the garbage collector does not close the connection before the reply.
      def initialize(args, connection)
        @args = args
        @connection = connection
        begin_on(connection)
      end

      # Takes the reply, or the error that came instead of it, only once.
      def join
        unless @is_joined
          begin
            @result = take(H2O.__value(@pending.__join))
          rescue BaseError => e
            @error = e
          end
          @is_joined = true
        end
        raise @error if @error
        @result
      end

      # Makes exceptions of the errors in a reply.
      def checked(reply)
        case reply
        when ReplyError then CommandError.new(reply.text, self)
        when Array then reply.map { |one| checked(one) }
        else reply
        end
      end

      class OneShot < self
        def begin_on(connection)
          @pending = connection.send(@args)
        end

        def take(reply)
          reply = checked(reply)
          raise reply if BaseError === reply
          reply
        end

        class Exec < self
          def take(reply)
            replies = super
            raise CommandError.new("transaction was aborted", self) if replies.nil?
            replies.each { |one| raise one if BaseError === one }
          end
        end
      end

      class NoReply < self
        def begin_on(connection)
          connection.unsubscribe(@args)
        end

        def join
          "OK"
        end
      end

      class Streaming < self
        def begin_on(connection)
          @pending = connection.subscribe(@args)
        end

        def take(reply)
          reply = checked(reply)
          raise reply if BaseError === reply
          Channel.new(self, @pending)
        end

        class Channel
          def initialize(command, subscription)
            @command = command
            @subscription = subscription
          end

          # Returns the channel and the text of the next message, or nil after the end of the subscription.
          def shift
            message = H2O.__value(@subscription.__shift)
            return message unless message && block_given?
            yield message[0], message[1]
          end
        end
      end
    end

    attr_reader :host, :port, :db, :password, :connect_timeout, :command_timeout

    def initialize(config)
      @host = config.fetch(:host)
      @port = config.fetch(:port)
      @db = config[:db] || 0
      @password = config[:password]
      @connect_timeout = config[:connect_timeout] || config[:timeout] || 5.0
      @command_timeout = config[:command_timeout] || config[:timeout] || 5.0
    end

    def connect
      return unless disconnected?
      @connection = Connection.open(@host, @port, @connect_timeout, @command_timeout)
      auth(@password) if @password
      select(@db) unless @db == 0
      nil
    end

    def disconnect
      @connection.close if @connection
      @connection = nil
    end

    def disconnected?
      !@connection || !@connection.open?
    end

    def db=(number)
      return if number == @db
      @db = number
      select(number) unless disconnected?
    end

    def ensure_connected
      connect
      yield
    end

    def call(name, *args)
      __send([name], args)
    end

    def multi
      command = call("MULTI")
      return command unless block_given?
      begin
        yield self
      rescue Exception => e
        discard unless ConnectionError === e
        raise e
      end
      exec
    end

    def watch(*keys)
      command = call("WATCH", *keys)
      return command unless block_given?
      begin
        yield self
      rescue Exception => e
        unwatch unless ConnectionError === e
        raise e
      end
    end

    def quit
      command = call("QUIT")
      yield command if block_given?
      command
    rescue ConnectionError
      nil
    end

    def monitor
      raise UnavailableCommandError, "monitor command is unavailable"
    end

    KINDS = {
      "EXEC" => Command::OneShot::Exec,
      "SUBSCRIBE" => Command::Streaming,
      "PSUBSCRIBE" => Command::Streaming,
      "UNSUBSCRIBE" => Command::NoReply,
      "PUNSUBSCRIBE" => Command::NoReply,
    }

    def __send(words, args)
      connect
      words = (words + args).map { |word| word.to_s }
      kind = KINDS[words[0].upcase] || Command::OneShot
      words[0] = words[0].upcase unless kind == Command::OneShot
      kind.new(words, @connection)
    end

    # Each of these commands becomes a method. The words of its name are separated at the first `_`; further `_` stand
    # for `-`.
    NAMES = "cluster_addslots cluster_count_failure_reports cluster_countkeysinslot cluster_delslots cluster_failover cluster_forget
      cluster_getkeysinslot cluster_info cluster_keyslot cluster_meet cluster_nodes cluster_replicate cluster_reset cluster_saveconfig
      cluster_set_config_epoch cluster_setslot cluster_slaves cluster_slots readonly readwrite auth echo ping select swapdb del dump
      exists expire expireat keys migrate move object persist pexpire pexpireat pttl randomkey rename renamenx restore sort touch ttl
      type unlink wait scan geoadd geohash geopos geodist georadius georadiusbymember hdel hexists hget hgetall hincrby hincrbyfloat
      hkeys hlen hmget hmset hset hsetnx hstrlen hvals hscan pfadd pfcount pfmerge blpop brpop brpoplpush lindex linsert llen lpop
      lpush lpushx lrange lrem lset ltrim rpop rpoplpush rpush rpushx pubsub publish psubscribe punsubscribe subscribe unsubscribe
      eval evalsha script_debug script_exists script_flush script_kill script_load bgrewriteaof bgsave client_kill client_list
      client_getname client_pause client_reply client_setname command command_count command_getkeys command_info config_get
      config_rewrite config_set config_resetstat dbsize debug_object debug_segfault flushall flushdb info lastsave role save shutdown
      slaveof slowlog sync time sadd scard sdiff sdiffstore sinter sinterstore sismember smembers smove spop srandmember srem sunion
      sunionstore sscan zadd zcard zcount zincrby zinterstore zlexcount zrange zrangebylex zrevrangebylex zrangebyscore zrank zrem
      zremrangebylex zremrangebyrank zremrangebyscore zrevrange zrevrangebyscore zrevrank zscore zunionstore zscan append bitcount
      bitfield bitop bitpos decr decrby get getbit getrange getset incr incrby incrbyfloat mget mset msetnx psetex set setbit setex
      setnx setrange strlen discard exec unwatch"
    NAMES.split.each do |name|
      words = name.upcase.split("_", 2).map { |word| word.tr("_", "-") }
      define_method(name) { |*args| __send(words, args) }
    end
  end
end
