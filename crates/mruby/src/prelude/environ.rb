# The environment variables, which Rust keeps for all workers.
ENV = Object.new
class << ENV
  def [](name)
    H2O.__env_get(name)
  end

  def []=(name, value)
    H2O.__env_set(name, value)
  end
  alias store []=

  def fetch(name, *default)
    value = self[name]
    return value unless value.nil?
    return yield(name) if block_given?
    return default[0] unless default.empty?
    raise KeyError, "key not found: #{name}"
  end

  def delete(name)
    value = self[name]
    self[name] = nil
    value
  end

  def key?(name)
    !self[name].nil?
  end
  alias has_key? key?
  alias include? key?
  alias member? key?

  def keys
    H2O.__env_keys
  end

  def values
    keys.map { |name| self[name] }
  end

  def size
    keys.size
  end

  def clear
    keys.each { |name| delete(name) }
    self
  end

  def to_a
    keys.map { |name| [name, self[name]] }
  end

  def to_hash
    to_a.to_h
  end

  def to_s
    "ENV"
  end

  def inspect
    to_hash.inspect
  end
end
