# mruby seeds its generators with numbers that all VMs that open at the same time have in common. These methods take a seed from the
# system if the script gives none.
class Random
  class << self
    alias __core_srand srand

    def srand(seed = H2O.__seed)
      __core_srand(seed)
    end
  end

  alias __core_initialize initialize
  alias __core_srand srand

  def initialize(seed = H2O.__seed)
    __core_initialize(seed)
  end

  def srand(seed = H2O.__seed)
    __core_srand(seed)
  end
end

module Kernel
  def srand(seed = H2O.__seed)
    Random.srand(seed)
  end
end

srand
