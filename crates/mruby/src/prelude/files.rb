class Dir
  include Enumerable

  class << self
    def open(path)
      dir = new(path)
      return dir unless block_given?
      begin
        yield dir
      ensure
        dir.close
      end
    end

    def entries(path)
      H2O.__entries(path)
    end

    def foreach(path, &block)
      entries(path).each(&block)
    end

    def exist?(path)
      File.directory?(path)
    end
    alias exists? exist?

    def mkdir(path, mode = 0777)
      H2O.__mkdir(path, mode)
    end

    def delete(path)
      H2O.__rmdir(path)
    end
    alias rmdir delete
    alias unlink delete

    # With a block, the directory is only changed while the block runs.
    def chdir(path)
      return H2O.__chdir(path) unless block_given?
      before = getwd
      begin
        H2O.__chdir(path)
        yield path
      ensure
        H2O.__chdir(before)
      end
    end

    def getwd
      H2O.__getwd
    end
    alias pwd getwd

    def chroot(path)
      H2O.__chroot(path)
    end
  end

  attr_reader :path

  def initialize(path)
    @path = path
    @entries = H2O.__entries(path)
    @at = 0
  end

  def read
    __check
    name = @entries[@at]
    @at += 1 if name
    name
  end

  def each
    while name = read
      yield name
    end
    self
  end

  def rewind
    self.pos = 0
    self
  end

  def pos=(at)
    __check
    @at = at
  end

  def seek(at)
    self.pos = at
    self
  end

  def tell
    __check
    @at
  end
  alias pos tell

  def close
    __check
    @entries = nil
  end

  def __check
    raise IOError, "closed directory" unless @entries
  end
end

class File
  class Stat
    include Comparable

    NUMBERS = [:dev, :ino, :mode, :nlink, :uid, :gid, :rdev, :size, :blksize, :blocks]
    attr_reader(*NUMBERS)
    attr_reader :atime, :mtime, :ctime, :birthtime, :dev_major, :dev_minor, :rdev_major, :rdev_minor

    TYPES = {
      0140000 => "socket", 0120000 => "link", 0100000 => "file", 0060000 => "blockSpecial",
      0040000 => "directory", 0020000 => "characterSpecial", 0010000 => "fifo"
    }

    def self.__of(path, follows)
      stat = allocate
      stat.__set(H2O.__stat(path, follows))
      stat
    end

    def initialize(path)
      __set(H2O.__stat(path, true))
    end

    def __set(found)
      NUMBERS.each_with_index { |name, i| instance_variable_set("@#{name}".to_sym, found[i]) }
      @atime, @mtime, @ctime, @birthtime = found[10, 8].each_slice(2).map { |second, micro| Time.at(second, micro) }
      @dev_major, @dev_minor, @rdev_major, @rdev_minor = found[18, 4]
    end

    def <=>(other)
      Stat === other ? mtime <=> other.mtime : nil
    end

    def ftype
      TYPES.fetch(mode & 0170000, "unknown")
    end

    [[:file?, "file"], [:directory?, "directory"], [:symlink?, "link"], [:chardev?, "characterSpecial"],
     [:blockdev?, "blockSpecial"], [:pipe?, "fifo"], [:socket?, "socket"]].each do |name, type|
      define_method(name) { ftype == type }
    end

    def size?
      size == 0 ? nil : size
    end

    def zero?
      size == 0
    end

    def owned?
      uid == H2O.__ids[2]
    end

    def owned_real?
      uid == H2O.__ids[0]
    end

    def grpowned?
      H2O.__ids.drop(3).include?(gid)
    end

    # Whether the process has the right `bit`: its real user and group decide if `real`, else the effective ones.
    def __allows?(bit, real)
      ids = H2O.__ids
      user = ids[real ? 0 : 2]
      groups = [ids[real ? 1 : 3]] + ids.drop(4)
      return bit != 1 || mode & 0111 != 0 if user == 0
      mode >> (user == uid ? 6 : groups.include?(gid) ? 3 : 0) & bit != 0
    end

    [[:readable, 4], [:writable, 2], [:executable, 1]].each do |name, bit|
      define_method(:"#{name}?") { __allows?(bit, false) }
      define_method(:"#{name}_real?") { __allows?(bit, true) }
    end

    def world_readable?
      mode & 4 == 0 ? nil : mode & 0777
    end

    def world_writable?
      mode & 2 == 0 ? nil : mode & 0777
    end

    def setuid?
      mode & 04000 != 0
    end

    def setgid?
      mode & 02000 != 0
    end

    def sticky?
      mode & 01000 != 0
    end
  end

  def self.stat(path)
    Stat.new(path)
  end

  def self.lstat(path)
    Stat.__of(path, false)
  end
end

class IO
  def stat
    File::Stat.new("/proc/self/fd/#{fileno}")
  end
end
