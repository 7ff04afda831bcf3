//! A configuration as lines that can be compared: one line for each value, with the keys that lead to the value.

use h2o_config::Node;
use h2o_exchange::CertificateInfo;
use rustc_hash::FxHashMap;

/// The lines of a configuration, in the order of its values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outline(Vec<Box<str>>);

impl Outline {
    /// Makes the outline of the configuration tree `top`.
    pub(crate) fn new(top: &Node) -> Self {
        let mut outline = Self::default();
        outline.add(&mut String::new(), top);
        outline
    }

    /// The outline with a line for each certificate, since the files of certificates may change although the configuration does
    /// not. A certificate that is still to be obtained has no line.
    pub(crate) fn with_certificates(&self, certificates: &[CertificateInfo]) -> Self {
        let mut outline = self.clone();
        for info in certificates.iter().filter(|info| !info.is_stand_in) {
            let names = info.names.join(", ");
            let dates = [info.not_before, info.not_after].map(h2o_http::date::format);
            let [from, to] = dates.each_ref().map(|date| String::from_utf8_lossy(date));
            let file = &info.file;
            let line = format!("{file}: certificate of {names}, valid from {from} to {to}");
            outline.0.push(line.into());
        }
        outline
    }

    fn add(&mut self, path: &mut String, node: &Node) {
        let len = path.len();
        if let Some(entries) = node.as_mapping() {
            for (key, value) in entries {
                if len > 0 {
                    path.push('.');
                }
                let key = key.as_str().unwrap_or_default();
                if key.contains(['/', ':', ' ', '"']) && len > 0 {
                    path.push_str(&format!("{key:?}"));
                } else {
                    path.push_str(key);
                }
                self.add(path, value);
                path.truncate(len);
            }
        } else if let Some(items) = node.as_sequence() {
            for item in items {
                // The line of a list item does not contain the item's index, so that an item inserted before it does not change its
                // line.
                path.push_str("[]");
                self.add(path, item);
                path.truncate(len);
            }
        } else {
            let value = node.as_str().unwrap_or_default();
            let value = if value.contains('\n') {
                format!("{value:?}")
            } else {
                value.to_owned()
            };
            self.0.push(format!("{path}: {value}").into());
        }
    }

    /// Lists what differs in `next`: first the lines that `next` has lost, marked with `-`, then the lines that are new in it,
    /// marked with `+`.
    pub(crate) fn differences(&self, next: &Self) -> Vec<String> {
        let gone = Self::without(&self.0, &next.0).map(|line| format!("- {line}"));
        let new = Self::without(&next.0, &self.0).map(|line| format!("+ {line}"));
        let mut lines: Vec<String> = gone.chain(new).collect();
        if lines.is_empty() && self != next {
            lines.push("the configuration has the same values in another order".to_owned());
        }
        lines
    }

    /// Returns the lines of `from` that `others` does not contain, or contains less often.
    fn without<'a>(from: &'a [Box<str>], others: &[Box<str>]) -> impl Iterator<Item = &'a str> {
        let mut counts: FxHashMap<Box<str>, usize> = FxHashMap::default();
        for line in others {
            *counts.entry(line.clone()).or_default() += 1;
        }
        from.iter()
            .map(|line| &**line)
            .filter(move |line| match counts.get_mut(*line) {
                Some(count) if *count > 0 => {
                    *count -= 1;
                    false
                }
                Some(_) | None => true,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(text: &str) -> Outline {
        let source = h2o_config::Memory::new().file("f", text);
        Outline::new(&h2o_config::load("f", &source).unwrap())
    }

    #[test]
    fn a_renewed_certificate_is_a_difference_with_its_dates() {
        let outline = |not_before, not_after, is_stand_in| {
            let info = CertificateInfo {
                place: "f:1".into(),
                file: "a.crt".into(),
                names: vec!["a.test".into()],
                is_obtained: true,
                is_stand_in,
                not_before,
                not_after,
                hosts: Vec::new(),
                listeners: Vec::new(),
            };
            let source = h2o_config::Memory::new().file("f", "a: b");
            Outline::new(&h2o_config::load("f", &source).unwrap()).with_certificates(&[info])
        };
        assert_eq!(
            outline(0, 86_400, false).differences(&outline(86_400, 172_800, false)),
            [
                "- a.crt: certificate of a.test, valid from Thu, 01 Jan 1970 00:00:00 GMT to Fri, 02 Jan 1970 00:00:00 GMT",
                "+ a.crt: certificate of a.test, valid from Fri, 02 Jan 1970 00:00:00 GMT to Sat, 03 Jan 1970 00:00:00 GMT",
            ]
        );
        let stand_in = outline(0, 86_400, true);
        assert_eq!(stand_in.differences(&stand_in), [""; 0]);
        assert_eq!(stand_in.differences(&outline(0, 86_400, false)).len(), 1);
    }

    #[test]
    fn differences_name_the_keys_that_lead_to_a_value() {
        let before = outline(
            "listen: 80\nlisten: [ 81, 82 ]\nhosts: { a.test: { paths: { /: { file.dir: /srv } } } }\n",
        );
        let cases: &[(&str, &[&str])] = &[
            (
                "listen: 80\nlisten: [ 81, 82 ]\nhosts: { a.test: { paths: { /: { file.dir: /srv } } } }\n# the same\n",
                &[],
            ),
            (
                "listen: 80\nlisten: [ 82, 81 ]\nhosts: { a.test: { paths: { /: { file.dir: /srv } } } }\n",
                &["the configuration has the same values in another order"],
            ),
            (
                "listen: 80\nlisten: [ 83, 82 ]\nhosts: { a.test: { paths: { /: { file.dir: /new } } } }\n",
                &[
                    "- listen[]: 81",
                    "- hosts.a.test.paths.\"/\".file.dir: /srv",
                    "+ listen[]: 83",
                    "+ hosts.a.test.paths.\"/\".file.dir: /new",
                ],
            ),
            (
                "listen: 80\nlisten: 80\nhosts: { a.test: { paths: { /: { file.dir: /srv } } } }\n",
                &["- listen[]: 81", "- listen[]: 82", "+ listen: 80"],
            ),
        ];
        for (next, want) in cases {
            assert_eq!(before.differences(&outline(next)), *want, "{next}");
        }
    }
}
