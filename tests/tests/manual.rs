//! The examples in the manual work as they are pasted.

use h2o_tests::manual::{self, Example};
use h2o_tests::{Folder, binary, run};

/// Writes an example configuration, and the files of `parts` that it includes, and has `h2o -t` check it. Returns the messages, except
/// those about ports that another process uses.
fn check(example: &Example, parts: &[Example]) -> String {
    let folder = Folder::new();
    let dir = folder.path().display().to_string();
    manual::furnish(&folder, std::iter::once(example).chain(parts));
    for part in parts {
        let name = part.file().unwrap_or_default();
        folder.write(
            name.trim_start_matches('/'),
            part.moved().replace("@DIR@", &dir),
        );
    }
    let config = folder.write("h2o.conf", example.moved().replace("@DIR@", &dir));
    let output = run(
        &binary().display().to_string(),
        &["-t", "-c", &config.display().to_string()],
    );
    let said = format!("{}{}", output.text(), output.stderr);
    let lines = said
        .lines()
        .filter(|line| !line.contains("Address already in use"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_configuration_of_the_manual_loads_as_pasted() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in manual::pages() {
        let blocks = manual::examples(&page);
        let is_yaml = |block: &&Example| block.language == "yaml";
        let mut blocks = blocks.iter().filter(is_yaml).peekable();
        while let Some(example) = blocks.next() {
            let mut parts = Vec::new();
            while let Some(part) = blocks.next_if(|block| is_part(block)) {
                parts.push(part.clone());
            }
            let said = check(example, &parts);
            if said != "configuration OK" {
                wrong.push(format!("{}\n{said}", example.place));
            }
            count += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 10, "only {count} examples were found in the manual");
}

/// Whether a block is a file that the configuration before it includes.
fn is_part(block: &Example) -> bool {
    block.file().is_some_and(|name| name.ends_with(".yaml"))
}

/// The anchor that GitHub derives from a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        c if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

#[test]
fn no_link_of_the_manual_leads_nowhere() {
    let anchors = |name: &str| -> Vec<String> {
        let page = manual::page(name);
        let headings = page.lines().filter(|line| line.starts_with('#'));
        headings
            .map(|line| anchor(line.trim_start_matches('#').trim()))
            .collect()
    };
    let mut wrong = Vec::new();
    let mut count = 0;
    let others = [
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "bench/README.md",
        "examples/fleet/README.md",
        "fuzz/README.md",
    ];
    for name in manual::pages().into_iter().chain(others.map(str::to_owned)) {
        let folder = name
            .rsplit_once('/')
            .map_or(String::new(), |(folder, _)| format!("{folder}/"));
        for link in manual::page(&name).split("](").skip(1) {
            let link = link.split(')').next().unwrap();
            if link.starts_with("https://") {
                continue;
            }
            count += 1;
            let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => name.clone(),
                file => format!("{folder}{file}"),
            };
            let is_there = manual::root().join(&target).exists();
            if !is_there || !fragment.is_empty() && !anchors(&target).contains(&fragment.to_owned())
            {
                wrong.push(format!("{name}: {link}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 20, "only {count} links were found in the manual");
}

/// An entry of `docs/directives.md`.
struct Entry {
    name: String,
    help: String,
    levels: String,
    value: String,
    default: String,
}

fn directives() -> Vec<Entry> {
    let page = manual::page("docs/directives.md");
    let entries = page.split("\n### `").skip(1).filter_map(|entry| {
        let (name, rest) = entry.split_once("`\n\n")?;
        let line = |start: &str| {
            let line = rest.lines().find_map(|line| line.strip_prefix(start));
            line.unwrap_or_default().trim_matches('`').to_owned()
        };
        Some(Entry {
            name: name.to_owned(),
            help: rest.lines().next()?.to_owned(),
            levels: line("* Levels: "),
            value: line("* Value: "),
            default: line("* Default: "),
        })
    });
    entries.collect()
}

/// The text of a page without its fenced code blocks.
fn prose(page: &str) -> String {
    let parts = page.split("```").step_by(2);
    parts.collect::<Vec<_>>().join("\n")
}

/// A configuration that has this setting at the innermost level at which the directive is allowed.
fn configuration_with(setting: &str, levels: &str) -> String {
    let has = |level: &str| levels.split(", ").any(|name| name == level);
    let at = |level: &str, indent: &str| match has(level) {
        true => format!("{indent}{setting}\n"),
        false => String::new(),
    };
    let [mut global, mut host, path] =
        [at("global", ""), at("host", "    "), at("path", "        ")];
    if !path.is_empty() {
        host.clear();
    }
    if !host.is_empty() || !path.is_empty() {
        global.clear();
    }
    // `proxy.proxy-protocol` and `proxy.http2.force-cleartext` each need another setting, as their help says.
    if setting.starts_with("proxy.proxy-protocol:") {
        global.push_str("proxy.timeout.keepalive: 0\n");
    }
    if setting.starts_with("proxy.http2.force-cleartext:") {
        global.push_str("proxy.http2.ratio: 100\n");
    }
    format!(
        "listen: 80\n{global}hosts:\n  default:\n{host}    paths:\n      \"/\":\n        file.dir: /srv/www\n{path}"
    )
}

#[test]
fn no_sentence_of_the_manual_quotes_a_setting_that_the_server_refuses() {
    let directives = directives();
    let mut wrong = Vec::new();
    let mut seen = Vec::new();
    for page in manual::pages() {
        for quoted in prose(&manual::page(&page)).split('`').skip(1).step_by(2) {
            let Some((name, value)) = quoted.split_once(": ") else {
                continue;
            };
            let Some(entry) = directives.iter().find(|entry| entry.name == name) else {
                continue;
            };
            if value.ends_with("...") || seen.contains(&quoted.to_owned()) {
                continue;
            }
            seen.push(quoted.to_owned());
            let example = Example {
                place: page.clone(),
                section: String::new(),
                language: "yaml".to_owned(),
                text: configuration_with(quoted, &entry.levels),
            };
            let said = check(&example, &[]);
            if said != "configuration OK" {
                wrong.push(format!("{page}: `{quoted}`\n{said}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        seen.len() > 30,
        "only {} settings were found in the manual",
        seen.len()
    );
}

#[test]
fn no_page_names_a_directive_without_a_link_to_its_entry() {
    let directives = directives();
    let mut wrong = Vec::new();
    let mut links = 0;
    for name in manual::pages() {
        if !name.starts_with("docs/") || name.ends_with("/directives.md") {
            continue;
        }
        let page = prose(&manual::page(&name));
        for Entry {
            name: directive, ..
        } in &directives
        {
            let [alone, with_value] = [format!("`{directive}`"), format!("`{directive}: ")];
            if !page.contains(&alone) && !page.contains(&with_value) {
                continue;
            }
            let link = format!("](directives.md#{})", anchor(directive));
            if page.contains(&link) {
                links += 1;
            } else {
                wrong.push(format!("{name}: `{directive}`"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(links > 50, "only {links} links were found in the manual");
}

#[test]
fn no_page_for_contributors_names_a_file_or_an_item_that_is_not_there() {
    let folders = [
        "crates/",
        "tests/",
        "docs/",
        "fuzz/",
        "bench/",
        "share/",
        "examples/",
    ];
    let mut wrong = Vec::new();
    let mut count = 0;
    for name in ["CONTRIBUTING.md", "ARCHITECTURE.md"] {
        let page = prose(&manual::page(name));
        let parts: Vec<_> = page.split('`').collect();
        for (index, path) in parts.iter().enumerate().skip(1).step_by(2) {
            if !folders.iter().any(|folder| path.starts_with(folder)) || path.contains(['*', ' ']) {
                continue;
            }
            count += 1;
            let file = manual::root().join(path);
            if !file.exists() {
                wrong.push(format!("{name}: {path}"));
            }
            // In a text of the form `NAME` in `FILE`, the file must contain the name.
            if parts[index - 1] == " in " && index >= 2 && file.is_file() {
                let item = parts[index - 2];
                let word = item.rsplit([' ', ':']).next().unwrap_or(item);
                if !std::fs::read_to_string(&file).unwrap().contains(word) {
                    wrong.push(format!("{name}: `{item}` in {path}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 10, "only {count} paths were found in the manual");
}

/// Writes a number with commas between groups of digits: 1234567 is `1,234,567`.
fn with_commas(number: u64) -> String {
    if number < 1000 {
        number.to_string()
    } else {
        format!("{},{:03}", with_commas(number / 1000), number % 1000)
    }
}

/// Writes a directive's default in the way of docs/limits.md: 1073741824 bytes is `1 GiB`. `None` if the default is not a number.
fn spoken(entry: &Entry) -> Option<String> {
    let number: u64 = entry.default.parse().ok()?;
    let is = |unit: &str| entry.value.contains(unit);
    Some(if is("MILLISECONDS") && !number.is_multiple_of(1000) {
        format!("{number} ms")
    } else if is("MILLISECONDS") {
        format!("{} s", number / 1000)
    } else if is("SECONDS") {
        format!("{number} s")
    } else if is("BYTES") {
        let scales = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        let scale = scales
            .iter()
            .find(|(bits, _)| number > 0 && number.is_multiple_of(1 << bits));
        match scale {
            Some((bits, name)) => format!("{} {name}", number >> bits),
            None => format!("{} bytes", with_commas(number)),
        }
    } else if is("UNITS") {
        format!("{} units", with_commas(number))
    } else {
        with_commas(number)
    })
}

#[test]
fn no_limit_is_missing_on_its_page_or_has_another_default_there() {
    let limits = manual::page("docs/limits.md");
    let directives = directives();
    let mut wrong = Vec::new();
    for entry in &directives {
        let units = ["SECONDS", "BYTES", "NUMBER", "UNITS"];
        let is_limit = units.iter().any(|unit| entry.value.contains(unit));
        let is_old_name = entry.help.starts_with("The old name");
        if is_limit && !is_old_name && !limits.contains(&format!("`{}`", entry.name)) {
            wrong.push(format!("`{}` is missing", entry.name));
        }
    }
    let mut rows = 0;
    for row in limits.lines() {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let name = cells.get(3).and_then(|cell| cell.strip_prefix("[`"));
        let Some(name) = name.and_then(|cell| cell.split('`').next()) else {
            continue;
        };
        rows += 1;
        let Some(entry) = directives.iter().find(|entry| entry.name == name) else {
            wrong.push(format!("`{name}` is no directive"));
            continue;
        };
        if let Some(want) = spoken(entry)
            && cells[2] != want
            && !cells[2].starts_with(&format!("{want} "))
        {
            wrong.push(format!("`{name}`: {} in place of {want}", cells[2]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(rows > 20, "only {rows} rows were found in the manual");
}
