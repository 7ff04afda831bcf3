# Basic authentication (RFC 7617) against a file with a line USER:HASH for each user.
class Htpasswd
  attr_accessor :path, :realm

  def initialize(path, realm)
    @path = path
    @realm = realm
  end

  def call(env)
    return respond(404, "not found") if Htpasswd.hidden?(env["PATH_INFO"])
    scheme, credentials = (env["HTTP_AUTHORIZATION"] || "").split(" ", 2)
    if credentials && scheme.downcase == "basic"
      user, password = credentials.unpack("m")[0].split(":", 2)
      begin
        return [399, { "x-fallthru-set-remote-user" => user }, []] if password && lookup(user, password)
      rescue => e
        $stderr.puts "failed to validate password using file:#{@path}:#{e.message}"
        return respond(500, "Internal Server Error")
      end
    end
    respond(401, "Authorization Required", "www-authenticate" => "Basic realm=\"#{@realm}\"")
  end

  # Whether the file has a line for the user with a hash that fits the password.
  def lookup(user, password)
    File.open(@path) do |file|
      file.each_line do |line|
        name, hash = line.chomp.split(":", 2)
        return true if name == user && hash && Htpasswd.validate(password, hash)
      end
    end
    false
  end

  # Whether the path of the request, which is not decoded, leads through a name that begins with `.ht`.
  def self.hidden?(path)
    path.gsub(/%([0-9A-Fa-f]{2})/) { $1.hex.chr }.include?("/.ht")
  end

  def self.validate(password, hash)
    if hash.start_with?("$apr1$")
      crypt_md5(password, hash.split("$")[2] || "") == hash
    elsif hash.start_with?("{SHA}")
      crypt_sha1(password) == hash
    elsif hash.start_with?("$2y$", "$2b$", "$2a$")
      H2O.__fits_bcrypt(password, hash)
    else
      raise "crypt-style password hash is not supported"
    end
  end

  def self.crypt_md5(password, salt)
    H2O.__crypt_apr1(password, salt)
  end

  def self.crypt_sha1(password)
    "{SHA}" + [Digest::SHA1.digest(password)].pack("m").chomp
  end

  private

  def respond(status, body, headers = {})
    [status, { "content-type" => "text/plain" }.merge(headers), [body]]
  end
end
