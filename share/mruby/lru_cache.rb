# A cache of limited size: when it is full, a new entry replaces the one that was not used for the longest time.
class LRUCache
  def initialize(capacity)
    raise "capacity must not be negative" if capacity < 0
    @capacity = capacity
    # The entries in the order of their last use.
    @entries = {}
  end

  # The value of the key, or nil if there is none. The entry becomes the most recently used one.
  def get(key)
    return nil unless @entries.key?(key)
    @entries[key] = @entries.delete(key)
  end

  def set(key, value)
    return value if @capacity == 0
    if @entries.key?(key)
      @entries.delete(key)
    elsif @entries.size >= @capacity
      @entries.shift
    end
    @entries[key] = value
  end
end
