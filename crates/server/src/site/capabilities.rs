//! The directive `capabilities`: the privileges that the server keeps after it has given up the rights of the starting user
//! (capabilities(7)).

use h2o_config::{Command, Directive, Error, Kinds, Levels, Pass};
use h2o_exchange::Scope;
use rustix::thread::CapabilitySet;

use crate::site::settings::settings;

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[Directive {
    name: "capabilities",
    levels: Levels::GLOBAL_ONLY,
    pass: Pass::Settings,
    kinds: Kinds::SEQUENCE,
    value: "sequence of names such as `CAP_NET_RAW`",
    default: "none are kept when the user is switched",
    help: "Linux capabilities (capabilities(7)) that the server keeps when it becomes [`user`](#user). The server gives up all \
           others, also if it does not switch the user. An empty sequence gives up all. Commands that the server starts do not \
           have them.",
    apply: |scope, command| {
        settings(scope).capabilities = Some(parse(command)?);
        Ok(())
    },
}];

fn parse(command: &Command<'_>) -> Result<CapabilitySet, Error> {
    let mut set = CapabilitySet::empty();
    for item in command.node.sequence()? {
        let name = item.scalar()?;
        let known = find(name);
        set |= known.ok_or_else(|| item.error(format!("unknown capability name `{name}`")))?;
    }
    Ok(set)
}

/// Finds the capability with a name like `CAP_CHOWN`, in any letter case.
fn find(name: &str) -> Option<CapabilitySet> {
    CapabilitySet::from_name(name.to_ascii_uppercase().strip_prefix("CAP_")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_manual_page() {
        assert_eq!(find("CAP_NET_RAW"), Some(CapabilitySet::NET_RAW));
        assert_eq!(find("cap_sys_admin"), Some(CapabilitySet::SYS_ADMIN));
        for wrong in ["NET_RAW", "CAP_", "CAP_NET", "", "CAP_CAP_NET_RAW"] {
            assert_eq!(find(wrong), None, "{wrong}");
        }
    }
}
