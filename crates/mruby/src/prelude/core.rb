H2O::MAIN = self

class Fiber
  class << self
    alias_method :__new, :new

    # mruby forgets to which class the outermost block of a fiber belongs: `def` raises an exception there, and a strand that calls a block
    # made there stops at the end of that block. So the block of a script is not the outermost one.
    def new(&block)
      return __new unless block
      __new { |*arguments| block.call(*arguments) }
    end
  end
end

module H2O
  # A fiber that runs jobs one after the other by calling one object. No exception may leave the fiber, hence the second `rescue`.
  class Strand < Fiber
    def self.make(callable)
      # A local variable, because Ruby would look up a constant at each use.
      server = H2O
      __new do |argument|
        while true
          begin
            begin
              # Ends the job and waits for the argument of the next. Meanwhile `argument` is nil, so that the old one can be freed.
              argument = server.__finish(callable.call(argument), argument = nil)
            rescue Exception => e
              argument = server.__fail(e, e = nil)
            end
          rescue Exception => e
            begin
              argument = server.__fail(e, e = nil)
            rescue Exception
              argument = server.__idle
            end
          end
        end
      end
    end
  end

  # Runs the block of a task.
  module Task
    def self.call(block)
      block.call
    end
  end

  # Runs compiled code as the main program.
  module Evaluator
    def self.call(code)
      ConfigurationContext.reset
      MAIN.__h2o_execute(code)
    end
  end

  # The result of a method that waits: raises the value with which it was resumed if that is an exception.
  def self.__value(value)
    raise value if Exception === value
    value
  end
end
