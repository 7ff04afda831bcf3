# A cache of limited size: the entry that was not used for the longest time makes room.
class LRUCache
  def initialize(capacity)
    raise "capacity must not be negative" if capacity < 0
    @capacity = capacity
    # In the order of their last use.
    @entries = {}
  end

  # The value of the key, or nil. The entry counts as used.
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
