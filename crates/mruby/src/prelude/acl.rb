module H2O
  # The values that one script registers while it is evaluated; other scripts may be evaluated while its top level waits.
  class ConfigurationContext
    @of_scripts = {}

    def self.instance
      @of_scripts[H2O.__context] || @instance ||= new
    end

    def self.reset
      @instance = @of_scripts[H2O.__context] = new
    end

    def initialize
      @values = {}
      @hooks = [proc { |app| raise "app is not callable" unless app.respond_to?(:call) }]
    end

    def get_value(key)
      @values[key]
    end

    def set_value(key, value)
      @values[key] = value
    end

    def delete_value(key)
      @values.delete(key)
    end

    def add_post_handler_generation_hook(hook)
      @hooks << hook
    end

    def call_post_handler_generation_hooks(app)
      @hooks.each { |hook| hook.call(app) }
    end
  end

  # The method `acl { ... }`, which makes a handler of rules that are tried in order.
  module ACL
    class TooEarlyError < StandardError
    end

    # The receiver of the conditions of rules: it gives access to the request.
    class Matcher
      def initialize(env)
        @env = env
      end

      def addr(forwarded = true)
        raise TooEarlyError if @env["HTTP_EARLY_DATA"]
        if forwarded && (list = @env["HTTP_X_FORWARDED_FOR"])
          return list.split(",")[0] || ""
        end
        @env["REMOTE_ADDR"] || ""
      end

      def path
        @env["PATH_INFO"] || ""
      end

      def method
        @env["REQUEST_METHOD"] || ""
      end

      def header(name)
        name = name.upcase.tr("-", "_")
        @env[name == "CONTENT_TYPE" || name == "CONTENT_LENGTH" ? name : "HTTP_#{name}"] || ""
      end

      def user_agent
        header("User-Agent")
      end
    end

    class Handler
      def initialize
        @rules = []
      end

      def call(env)
        matcher = Matcher.new(env)
        @rules.each do |app, condition|
          return app.call(env) if !condition || matcher.instance_eval(&condition)
        end
        [399, {}, []]
      rescue TooEarlyError
        [425, {}, []]
      end

      def allow(&condition)
        respond(399, &condition)
      end

      def deny(&condition)
        respond(403, {}, ["Forbidden"], &condition)
      end

      def redirect(location, status = 302, &condition)
        respond(status, { "Location" => location }, &condition)
      end

      def respond(status, header = {}, body = [], &condition)
        use(proc { [status, header.dup, body] }, &condition)
      end

      def use(app, &condition)
        @rules << [app, condition]
        self
      end
    end

    def acl(&block)
      context = ConfigurationContext.instance
      raise "acl can be called only once for each handler configuration" if context.get_value(:acl)
      handler = Handler.new
      context.set_value(:acl, handler)
      context.add_post_handler_generation_hook(proc do |app|
        raise "acl configuration is ignored" unless app.equal?(handler)
      end)
      handler.instance_eval(&block)
      handler
    end
  end
end

include H2O::ACL
