require "lru_cache.rb"

# Counts the requests of each client address, and calls a callback, which returns the response. Each worker of the server counts for itself.
class DoSDetector
  def initialize(config = {})
    @strategy = config.key?(:strategy) ? config[:strategy] : CountingStrategy.new
    raise "strategy must not be nil" if @strategy.nil?
    @callback = config.key?(:callback) ? config[:callback] : DoSDetector.default_callback
    raise "callback must not be nil" if @callback.nil?
    @forwarded = config.fetch(:forwarded, true)
    @clients = LRUCache.new(config.fetch(:cache_size, 128))
  end

  def call(env)
    address = address_of(env)
    client = @clients.get(address) || @clients.set(address, { :ip => address })
    detected, *extra = *@strategy.detect?(client, Time.now.to_i, env)
    @callback.call(env, detected, address, *extra)
  end

  # A callback that answers 403 to detected clients, and passes the requests of others to the next handler.
  def self.default_callback
    proc do |env, detected, address|
      detected ? [403, { "Content-Type" => "text/plain" }, ["Forbidden"]] : [399, {}, []]
    end
  end

  # A callback that passes every request to the next handler. For detected clients that handler gets variables DOS_NAME with what was
  # detected.
  def self.fallthrough_callback
    proc do |env, detected, address, extra|
      headers = {}
      if detected
        found = (Hash === extra ? extra : {}).merge(:ip => address)
        found.each { |name, value| headers["x-fallthru-set-dos-#{name.to_s.gsub("_", "-")}"] = value.to_s }
      end
      [399, headers, []]
    end
  end

  private

  def address_of(env)
    forwarded = @forwarded && env["HTTP_X_FORWARDED_FOR"]
    (forwarded && forwarded.split(",")[0]) || env["REMOTE_ADDR"]
  end

  # A strategy that refuses a client which sends `threshold` requests within `period` seconds for `ban_period` seconds.
  class CountingStrategy
    def initialize(config = {})
      @period = config.fetch(:period, 10)
      @threshold = config.fetch(:threshold, 100)
      @ban_period = config.fetch(:ban_period, 300)
      raise "period must be greater than zero" unless @period > 0
      raise "threshold must be greater than zero" unless @threshold > 0
      raise "ban_period must not be negative" if @ban_period < 0
    end

    def detect?(client, now, env)
      count(client, (now / @period).floor)
      detected = client[:banned_until] && client[:banned_until] >= now
      if !detected && client[:count] >= @threshold
        client[:banned_until] = now + @ban_period
        detected = true
      end
      [detected ? true : false, { :count => client[:count], :banned_until => client[:banned_until] || 0 }]
    end

    private

    # For each period that has begun since the client's last request, the count decreases by `threshold`.
    def count(client, slot)
      before = client[:slot] || slot
      count = (client[:count] || 0) - (slot > before ? (slot - before) * @threshold : 0)
      client[:slot] = slot > before ? slot : before
      client[:count] = (count < 0 ? 0 : count) + 1
    end
  end
end
