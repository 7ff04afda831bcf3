//! Converts the Markdown of the manual into man pages (roff).

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

/// Escapes text for roff: the backslash, hyphens (so that users can copy them), and characters that would begin a roff request at
/// the start of a line.
pub(super) fn escape(text: &str) -> String {
    let mut output = String::with_capacity(text.len());
    for (at, line) in text.split('\n').enumerate() {
        if at > 0 {
            output.push('\n');
        }
        if line.starts_with(['.', '\'']) {
            output += "\\&";
        }
        for c in line.chars() {
            match c {
                '\\' => output += "\\e",
                '-' => output += "\\-",
                '`' => output += "\\(ga",
                '^' => output += "\\(ha",
                '~' => output += "\\(ti",
                c => output.push(c),
            }
        }
    }
    output
}

/// Converts a Markdown text into a man page. Headings of the second level become sections.
pub(super) fn from_markdown(text: &str) -> String {
    let mut page = Page::default();
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        page.on_event(event);
    }
    page.output
}

/// A man page that is being written.
#[derive(Default)]
struct Page {
    output: String,
    /// The text of the Markdown heading or table cell that is being read.
    held: Option<String>,
    /// Index of the next cell in the row of the table.
    cell: usize,
    /// The headings of the table's columns.
    heads: Vec<String>,
    is_head: bool,
    is_code_block: bool,
    /// Whether a roff request for a new paragraph has been written, but no text after it yet.
    is_item_start: bool,
}

impl Page {
    fn on_event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.on_start(&tag),
            Event::End(tag) => self.on_end(tag),
            Event::Text(text) if self.is_code_block => self.output += &escape(&text),
            Event::Text(text) => self.write(&escape(&text)),
            Event::Code(code) => self.write(&format!("\\fB{}\\fR", escape(&code))),
            Event::SoftBreak | Event::HardBreak => self.write(" "),
            // The manual has no math, HTML, footnotes, rules and task lists.
            Event::InlineMath(_)
            | Event::DisplayMath(_)
            | Event::Html(_)
            | Event::InlineHtml(_)
            | Event::FootnoteReference(_)
            | Event::Rule
            | Event::TaskListMarker(_) => {}
        }
    }

    /// Adds a piece of text to the current line.
    fn write(&mut self, text: &str) {
        let target = self.held.as_mut().unwrap_or(&mut self.output);
        // At the start of a line, the text must not look like a roff request.
        if target.is_empty() || target.ends_with('\n') {
            let text = text.trim_start();
            if text.starts_with(['.', '\'']) {
                target.push_str("\\&");
            }
            target.push_str(text);
        } else {
            target.push_str(text);
        }
        self.is_item_start = false;
    }

    /// Writes a line with a roff request.
    fn request(&mut self, request: &str) {
        if !self.output.is_empty() && !self.output.ends_with('\n') {
            self.output.push('\n');
        }
        self.output += request;
        self.output.push('\n');
    }

    fn on_start(&mut self, tag: &Tag<'_>) {
        match tag {
            Tag::Heading { .. } | Tag::TableCell => self.held = Some(String::new()),
            Tag::Paragraph if !self.is_item_start => self.request(".PP"),
            Tag::Item => {
                self.request(".IP \\(bu 2");
                self.is_item_start = true;
            }
            Tag::CodeBlock(CodeBlockKind::Fenced(_) | CodeBlockKind::Indented) => {
                self.request(".PP\n.RS 4\n.EX");
                self.is_code_block = true;
            }
            Tag::TableHead => {
                self.heads.clear();
                self.is_head = true;
                self.cell = 0;
            }
            Tag::TableRow => self.cell = 0,
            Tag::Strong => self.write("\\fB"),
            Tag::Emphasis => self.write("\\fI"),
            _ => {}
        }
    }

    fn on_end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(level) => {
                let text = self.held.take().unwrap_or_default();
                let plain = text.replace("\\fB", "").replace("\\fR", "");
                match level {
                    HeadingLevel::H1 | HeadingLevel::H2 => {
                        self.request(&format!(".SH \"{}\"", plain.to_uppercase()));
                    }
                    _ => self.request(&format!(".SS \"{plain}\"")),
                }
            }
            TagEnd::CodeBlock => {
                self.is_code_block = false;
                self.request(".EE\n.RE");
            }
            TagEnd::TableHead => self.is_head = false,
            TagEnd::TableCell => self.on_cell(),
            TagEnd::Strong | TagEnd::Emphasis => self.write("\\fR"),
            TagEnd::List(_) | TagEnd::Table => self.request(".PP"),
            _ => {}
        }
    }

    /// Writes a table cell. The first cell of a row becomes the tag of a tagged paragraph, and the other cells are written below
    /// it. If there are several others, each begins with the heading of its column.
    fn on_cell(&mut self) {
        let text = self.held.take().unwrap_or_default();
        let cell = self.cell;
        self.cell += 1;
        if self.is_head {
            self.heads.push(text);
            return;
        }
        if cell == 0 {
            self.request(".TP");
            self.output += &text;
            return;
        }
        if text.is_empty() {
            return;
        }
        if cell > 1 {
            self.request(".br");
        } else {
            self.output.push('\n');
        }
        let head = self.heads.get(cell).filter(|head| !head.is_empty());
        match head {
            Some(head) if self.heads.len() > 2 => self.write(&format!("{head}: {text}")),
            _ => self.write(&text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_never_a_request() {
        assert_eq!(escape(".TH a\n'b\n\\fB-c"), "\\&.TH a\n\\&'b\n\\efB\\-c");
        assert!(from_markdown(".so /etc/passwd\n").contains("\n\\&.so"));
    }

    #[test]
    fn what_the_manual_uses_has_a_form() {
        let cases = [
            ("## A\n", ".SH \"A\"\n"),
            ("### `b-c`\n", ".SS \"b\\-c\"\n"),
            ("one\ntwo `three`\n", ".PP\none two \\fBthree\\fR"),
            ("[text](a.md#b) **c**\n", ".PP\ntext \\fBc\\fR"),
            ("* a\n* b\n", ".IP \\(bu 2\na\n.IP \\(bu 2\nb\n.PP\n"),
            (
                "```yaml\nlisten: 80\n.x\n```\n",
                ".PP\n.RS 4\n.EX\nlisten: 80\n\\&.x\n.EE\n.RE\n",
            ),
            (
                "| A | B |\n|---|---|\n| `a` | text |\n",
                ".TP\n\\fBa\\fR\ntext\n.PP\n",
            ),
            (
                "| A | V | D | M |\n|---|---|---|---|\n| a | b |  | c |\n",
                ".TP\na\nV: b\n.br\nM: c\n.PP\n",
            ),
        ];
        for (text, want) in cases {
            assert_eq!(from_markdown(text), want, "{text}");
        }
    }
}
