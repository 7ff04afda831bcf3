//! Checks of the files and directories that a configuration relies on: they exist, and the running user may read them.
//!
//! Root may read everything, so a test that runs as root gives its thread another user's rights.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use h2o_config::{Level, Memory};
use h2o_exchange::{PathCheck, PathNeed, RunningUser};
use rustix::process::geteuid;
use rustix::thread::set_thread_res_uid;

/// A directory whose files have the given permissions. It is removed when this value is dropped.
struct Tree(PathBuf);

impl Tree {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("h2o-rights-{}", std::process::id()));
        std::fs::create_dir_all(path.join("closed/below"))
            .expect("directories can be made in the temporary directory");
        for name in ["unlisted", "no-entry", "open"] {
            std::fs::create_dir_all(path.join(name))
                .expect("directories can be made in the temporary directory");
        }
        for name in ["open/file", "secret", "closed/file", "closed/below/file"] {
            std::fs::write(path.join(name), "x")
                .expect("the test can write into its own directory");
        }
        let tree = Self(path);
        for (name, mode) in [
            ("", 0o755),
            ("open", 0o755),
            ("open/file", 0o644),
            ("secret", 0o200),
            ("unlisted", 0o311),
            ("no-entry", 0o644),
            ("closed", 0o600),
        ] {
            tree.set_mode(name, mode);
        }
        tree
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn set_mode(&self, name: &str, mode: u32) {
        let mode = Permissions::from_mode(mode);
        std::fs::set_permissions(self.at(name), mode).expect("the test owns the file");
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.set_mode("closed", 0o700);
        self.set_mode("no-entry", 0o700);
        // An error is ignored: a directory that cannot be removed must not make the test fail.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const DIRECTORY: PathNeed = PathNeed::Directory { is_listed: false };
const LISTED: PathNeed = PathNeed::Directory { is_listed: true };

/// Each row: kind of access, path, and the result: nothing, or the path to which access is refused and the command that
/// fixes it.
type Case = (PathNeed, &'static str, Option<(&'static str, &'static str)>);

const CASES: [Case; 12] = [
    (PathNeed::File, "open/file", None),
    (DIRECTORY, "open", None),
    (LISTED, "open", None),
    (PathNeed::File, "secret", Some(("o+r", "secret"))),
    // The directory `unlisted` can be entered but not listed.
    (DIRECTORY, "unlisted", None),
    (LISTED, "unlisted", Some(("o+rx", "unlisted"))),
    // The directory `no-entry` can be listed but not entered.
    (DIRECTORY, "no-entry", Some(("o+x", "no-entry"))),
    (LISTED, "no-entry", Some(("o+x", "no-entry"))),
    // The message names the directory that may not be searched, however far above the path it is.
    (PathNeed::File, "closed/file", Some(("o+x", "closed"))),
    (PathNeed::File, "closed/below/file", Some(("o+x", "closed"))),
    (DIRECTORY, "closed/below", Some(("o+x", "closed"))),
    // The directory `closed` may not be searched, so the server cannot know whether the file exists.
    (PathNeed::File, "closed/gone", Some(("o+x", "closed"))),
];

/// Creates the check of a path that the directive `word` names.
fn check(need: PathNeed, path: &Path) -> PathCheck {
    let memory = Memory::new().file("a.conf", "word: x\n");
    let node = h2o_config::load("a.conf", &memory).expect("the configuration is valid YAML");
    let (key, value) = &node.as_mapping().expect("the configuration is a mapping")[0];
    let command = h2o_config::Command {
        name: "word",
        node: value,
        key,
        level: Level::Global,
    };
    PathCheck::new(&command, value, path, need)
}

fn look(tree: &Tree, is_current: bool) {
    let user = RunningUser {
        name: "www",
        is_current,
    };
    for (need, name, want) in CASES {
        let said = check(need, &tree.at(name)).check_as_running_user(user);
        let Some((mode, at)) = want.filter(|_| is_current) else {
            assert!(said.is_none(), "{need:?} of {name}: {said:?}");
            continue;
        };
        let said = said.unwrap_or_else(|| panic!("{need:?} of {name}: the check gives no message"));
        let path = tree.at(name);
        let message = format!(
            "the server runs as `www`, who may not read {}",
            path.display()
        );
        assert_eq!(said.message, message, "{need:?} of {name}");
        let at = tree.at(at);
        let hint = format!(
            "requests get 403; `chmod {mode} {}` allows it",
            at.display()
        );
        assert_eq!(said.hint, Some(hint), "{need:?} of {name}");
    }
}

#[test]
fn what_the_running_user_may_not_read_is_named_with_the_command_that_helps() {
    let tree = Tree::new();
    let work = || {
        if geteuid().is_root() {
            // Changes the rights of this thread only: other tests keep theirs.
            let nobody = rustix::process::Uid::from_raw(65_534);
            set_thread_res_uid(nobody, nobody, nobody).expect("root may change to any user");
        }
        look(&tree, true);
        // While the process has not become the running user, no missing rights are reported.
        look(&tree, false);
    };
    let ended = std::thread::scope(|scope| scope.spawn(work).join());
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn paths_that_a_configuration_relies_on_are_looked_at() {
    let directory = std::env::temp_dir().join(format!("h2o-paths-{}", std::process::id()));
    std::fs::create_dir_all(directory.join("below"))
        .expect("directories can be made in the temporary directory");
    std::fs::write(directory.join("file"), "x").expect("the test can write into its own directory");
    // Each row: kind of access, path, and the messages for the starting and the running user.
    let cases: &[(PathNeed, &str, Option<&str>, Option<&str>)] = &[
        (PathNeed::File, "file", None, None),
        (PathNeed::File, "gone", None, Some("does not exist")),
        (PathNeed::OwnFile, "gone", None, Some("does not exist")),
        (PathNeed::File, "below", None, Some("is a directory")),
        (DIRECTORY, "below", None, None),
        (LISTED, "below", None, None),
        (LISTED, "file", None, Some("is not a directory")),
        (DIRECTORY, "gone", None, Some("does not exist")),
        (DIRECTORY, "file/x", None, Some("does not exist")),
        // A file that is to be created needs an existing directory.
        (PathNeed::Parent, "new", None, None),
        (PathNeed::Parent, "below/new", None, None),
        (
            PathNeed::Parent,
            "gone/new",
            Some("there is no directory"),
            None,
        ),
        (
            PathNeed::Parent,
            "file/new",
            Some("there is no directory"),
            None,
        ),
    ];
    for is_current in [false, true] {
        let user = RunningUser {
            name: "nobody",
            is_current,
        };
        for (need, name, starting, running) in cases {
            let check = check(*need, &directory.join(name));
            let said = [
                check.check_as_starting_user(),
                check.check_as_running_user(user),
            ];
            for (said, want) in said.into_iter().zip([starting, running]) {
                let said = said.map(|error| error.to_string());
                match want {
                    None => assert_eq!(said, None, "{need:?} of {name}"),
                    Some(want) => {
                        let said = said.unwrap_or_else(|| {
                            panic!("{need:?} of {name}: the check gives no message")
                        });
                        assert!(
                            said.contains(want) && said.contains("word"),
                            "{need:?} of {name}: {said}"
                        );
                    }
                }
            }
        }
    }
    std::fs::remove_dir_all(&directory).expect("the test can remove the directory");
    for (need, want) in [(PathNeed::File, "get 404"), (PathNeed::OwnFile, "get 500")] {
        let gone = check(need, "/no/such/file".as_ref());
        let said = gone.check_as_running_user(RunningUser {
            name: "nobody",
            is_current: true,
        });
        let hint = said.and_then(|error| error.hint).unwrap_or_default();
        assert!(hint.contains(want), "{hint}");
    }
    let relative = check(PathNeed::File, "no/such/file".as_ref());
    let user = RunningUser {
        name: "nobody",
        is_current: true,
    };
    let said = relative
        .check_as_running_user(user)
        .expect("the path does not exist");
    assert!(said.to_string().contains("no/such/file"));
    assert!(
        said.hint
            .is_some_and(|hint| hint.contains("a relative path counts from"))
    );
}
