//! Looks up users and groups of the operating system by name.

/// A user of the operating system.
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Looks a user up by name.
pub(crate) fn find_user(name: &str) -> Option<User> {
    let user = nix::unistd::User::from_name(name).ok().flatten()?;
    Some(User {
        uid: user.uid.as_raw(),
        gid: user.gid.as_raw(),
    })
}

/// Looks a group up by name.
pub(crate) fn find_group(name: &str) -> Option<u32> {
    nix::unistd::Group::from_name(name)
        .ok()
        .flatten()
        .map(|group| group.gid.as_raw())
}
