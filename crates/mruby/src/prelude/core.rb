H2O::MAIN = self

module H2O
  # A fiber that runs one job after another. No exception may leave it, hence the second `rescue`.
  class Strand < Fiber
    def self.make
      # A local variable, since a constant would be looked up at each use.
      server = H2O
      new do |callable, argument|
        while true
          begin
            begin
              server.__finish(callable.call(argument))
            rescue Exception => e
              server.__fail(e)
            end
          rescue Exception => e
            begin
              server.__fail(e)
            rescue Exception
            end
          end
          callable = argument = e = nil
          callable, argument = server.__idle
        end
      end
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
