H2O::MAIN = self

module H2O
  # A fiber that runs one job after the other. No exception may leave it, hence the second `rescue`.
  class Strand < Fiber
    def self.make
      # A constant would be looked up at each use.
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

  # Runs compiled text as the main program.
  module Evaluator
    def self.call(code)
      ConfigurationContext.reset
      MAIN.__h2o_execute(code)
    end
  end

  # What a method that waits was resumed with: an exception is raised.
  def self.__value(value)
    raise value if Exception === value
    value
  end
end
