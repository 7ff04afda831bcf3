//! `setuidgid USER COMMAND [ARGUMENT]...`: runs a command as another user.

use nix::unistd::User;

use crate::{Failure, privileges};

const USAGE: &str = "Usage: setuidgid USER COMMAND [ARGUMENT]...";

/// Replaces this process by the command (`exec`). Returns only if that fails.
pub(super) fn run(mut arguments: impl Iterator<Item = String>) -> Result<(), Failure> {
    let name = arguments.next().ok_or_else(|| Failure::config(USAGE))?;
    let user = User::from_name(&name).ok().flatten();
    let user = user.ok_or_else(|| Failure::config(format!("unknown user:{name}")))?;
    privileges::switch_user(&user, None)?;
    Err(super::become_command(arguments, USAGE))
}
