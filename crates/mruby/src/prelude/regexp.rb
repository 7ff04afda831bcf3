class Regexp
  # A pattern does not change, so it is its own copy.
  def dup
    self
  end
  alias clone dup

  # Yields the matches in the text, which must not change meanwhile. They are searched for in groups, since each search looks at the whole
  # text once.
  def __each_match(text)
    start = 0
    most = 1
    while true
      matches = __search_some(text, start, most)
      matches.each { |match| yield match }
      return if matches.size < most
      start = matches[-1].__next
      most *= 2 if most < 1024
    end
  end

  # Replaces the first match, or all matches, by the value of the block for each. nil if nothing matches.
  def __replace_by(text, all)
    text = text.dup
    out = nil
    done = 0
    last = nil
    __each_match(text) do |match|
      last = match
      Regexp.last_match = match
      from = match.begin(0)
      from = done if from < done
      out = (out || "") << text.byteslice(done, from - done)
      out << yield(match.to_s).to_s
      done = match.end(0)
      break unless all
    end
    Regexp.last_match = last
    out && out << text.byteslice(done, text.bytesize)
  end

  # The common part of `sub` and `gsub`.
  def __substitute(text, all, arguments, block)
    replacement = arguments[1]
    if arguments.size > 1
      return __replace_by(text, all) { |part| replacement[part] } if Hash === replacement
      __replace(text, replacement, all)
    elsif block
      __replace_by(text, all, &block)
    else
      raise ArgumentError, "wrong number of arguments (given 1, expected 2)"
    end
  end
end

class String
  alias __core_sub sub
  alias __core_sub! sub!
  alias __core_gsub gsub
  alias __core_gsub! gsub!
  alias __core_split split
  alias __core_aref []
  alias __core_aset []=
  alias __core_slice! slice!
  alias __core_index index

  def sub(*arguments, &block)
    pattern = arguments[0]
    return __core_sub(*arguments, &block) unless Regexp === pattern
    pattern.__substitute(self, false, arguments, block) || dup
  end

  def sub!(*arguments, &block)
    pattern = arguments[0]
    return __core_sub!(*arguments, &block) unless Regexp === pattern
    raise FrozenError, "can't modify frozen String" if frozen?
    text = pattern.__substitute(self, false, arguments, block)
    text && replace(text)
  end

  def gsub(*arguments, &block)
    pattern = arguments[0]
    return __core_gsub(*arguments, &block) unless Regexp === pattern
    return to_enum(:gsub, pattern) if arguments.size == 1 && !block
    pattern.__substitute(self, true, arguments, block) || dup
  end

  def gsub!(*arguments, &block)
    pattern = arguments[0]
    return __core_gsub!(*arguments, &block) unless Regexp === pattern
    raise FrozenError, "can't modify frozen String" if frozen?
    text = pattern.__substitute(self, true, arguments, block)
    text && replace(text)
  end

  def scan(pattern)
    pattern = Regexp.compile(Regexp.escape(pattern)) if String === pattern
    raise TypeError, "wrong argument type #{pattern.class} (expected Regexp)" unless Regexp === pattern
    return pattern.__scan(self) unless block_given?
    last = nil
    pattern.__each_match(dup) do |match|
      last = match
      Regexp.last_match = match
      yield(match.size > 1 ? match.captures : match.to_s)
    end
    Regexp.last_match = last
    self
  end

  def split(*arguments, &block)
    pattern = arguments[0]
    return __core_split(*arguments, &block) unless Regexp === pattern
    parts = pattern.__split(self, arguments[1])
    return parts unless block
    parts.each(&block)
    self
  end

  def [](*arguments)
    pattern = arguments[0]
    return __core_aref(*arguments) unless Regexp === pattern
    match = pattern.match(self)
    match && match[arguments.size > 1 ? arguments[1] : 0]
  end

  alias slice []

  def []=(*arguments)
    pattern = arguments[0]
    return __core_aset(*arguments) unless Regexp === pattern
    match = pattern.match(self)
    raise IndexError, "regexp not matched" unless match
    group = arguments.size > 2 ? arguments[1] : 0
    from = match.begin(group)
    raise IndexError, "regexp group #{group} not matched" unless from
    replace(byteslice(0, from) << arguments[-1] << byteslice(match.end(group), bytesize))
    arguments[-1]
  end

  def slice!(*arguments)
    return __core_slice!(*arguments) unless Regexp === arguments[0]
    part = self[*arguments]
    # mruby 4.0 assigns by the whole Array of arguments if this is written with brackets, hence `__send__`.
    __send__(:[]=, *arguments, "") if part
    part
  end

  def index(*arguments)
    pattern = arguments[0]
    return __core_index(*arguments) unless Regexp === pattern
    match = pattern.match(self, arguments[1] || 0)
    match && match.begin(0)
  end
end

class MatchData
  def inspect
    "#<MatchData #{to_s.inspect}#{captures.each_with_index.map { |part, i| " #{i + 1}:#{part.inspect}" }.join}>"
  end
end

class NilClass
  def =~(pattern)
    nil
  end
end
