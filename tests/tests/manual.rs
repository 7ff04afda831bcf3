//! What the manual shows works as it is pasted.

use h2o_tests::manual::{self, Example};
use h2o_tests::{Folder, binary, run};

/// Writes the example and the files that follow it as parts of it, and has the program check it: what it says, but for another
/// server's having a port of the example on this machine.
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
    assert!(count > 10, "only {count} examples are left");
}

/// A file that the configuration before it includes.
fn is_part(block: &Example) -> bool {
    block.file().is_some_and(|name| name.ends_with(".yaml"))
}

/// The anchor that GitHub and its like give a heading.
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
    for name in manual::pages() {
        let folder = if name.starts_with("docs/") {
            "docs/"
        } else {
            ""
        };
        for link in manual::page(&name).split("](").skip(1) {
            let link = link.split(')').next().unwrap();
            if link.starts_with("https://") {
                continue;
            }
            count += 1;
            let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => name.clone(),
                file => match file.strip_prefix("../") {
                    Some(file) => file.to_owned(),
                    None => format!("{folder}{file}"),
                },
            };
            let is_there = manual::root().join(&target).exists();
            if !is_there || !fragment.is_empty() && !anchors(&target).contains(&fragment.to_owned())
            {
                wrong.push(format!("{name}: {link}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 20, "only {count} links are left");
}
