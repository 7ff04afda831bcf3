class LoadError < ScriptError
end

module Kernel
  # Loads a file, unless a script of this worker has loaded it. Returns whether it was loaded.
  def require(name)
    path = H2O.__find(name)
    return false if $".include?(path) || H2O::LOADING.include?(path)
    H2O::LOADING << path
    begin
      H2O::MAIN.__h2o_execute(H2O.__read(path))
    ensure
      H2O::LOADING.delete(path)
    end
    $" << path
    true
  end

  # Loads a file, even if it has been loaded before.
  def load(path)
    H2O::MAIN.__h2o_execute(H2O.__read(path))
    true
  end
end

module H2O
  # The files whose loading has begun: a file that requires itself is not loaded twice.
  LOADING = []
end
