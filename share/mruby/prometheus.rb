module H2O
  # Answers with the numbers of the `status` handler, which must come after it, in the text format of Prometheus.
  class Prometheus
    GAUGES = ["uptime", "connections", "num-sessions", "evloop-latency-nanosec"]

    def initialize(status)
      @status = status
    end

    def call(env)
      env["PATH_INFO"] = "/json"
      env["REQUEST_METHOD"] = "GET"
      code, headers, body = @status.call(env)
      return [code, headers, body] unless code == 200
      numbers = JSON.parse(body.join)
      version = numbers.delete("server-version")
      numbers.delete("requests")
      lines = []
      numbers.each { |key, value| describe(lines, key, value, version) }
      headers.delete("content-length")
      [code, headers, [lines.join]]
    end

    private

    def describe(lines, key, value, version)
      return unless value.is_a?(Numeric) || (value.is_a?(Array) && value.all? { |part| part.is_a?(Numeric) })
      name = "h2o_" + key.gsub(/[^a-zA-Z0-9:_]/, "_")
      lines << "# HELP #{name} #{key}\n# TYPE #{name} #{type(key)}\n"
      if value.is_a?(Array)
        value.each_with_index do |part, index|
          lines << "#{name}{version=\"#{version}\", thread=\"#{index}\"} #{part}\n"
        end
      else
        lines << "#{name}{version=\"#{version}\"} #{value}\n"
      end
    end

    # The type of a metric. Names that end in a number are quantiles, which are gauges too.
    def type(key)
      GAUGES.include?(key) || key.match?(/-[0-9]+\z/) ? "gauge" : "counter"
    end
  end
end
