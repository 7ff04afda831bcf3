//! `Digest`: the algorithms. Its classes are in `prelude/digest.rb`. Besides, the hashes of password files that take too long in
//! Ruby.

use md5::Md5;
use sha1::Sha1;
use sha1::digest::Digest as _;
use sha2::{Sha256, Sha384, Sha512};

use crate::function::text_argument;
use crate::{Call, Leave, Value, Vm};

/// `Digest.__digest(algorithm, data)`.
fn digest(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let [algorithm, data] = call.arguments.exactly()?;
    let data = text_argument(vm, data)?;
    let hashed = match &*text_argument(vm, algorithm)? {
        b"MD5" => Md5::digest(data).to_vec(),
        b"SHA1" => Sha1::digest(data).to_vec(),
        b"SHA256" => Sha256::digest(data).to_vec(),
        b"SHA384" => Sha384::digest(data).to_vec(),
        b"SHA512" => Sha512::digest(data).to_vec(),
        _ => return Err(Leave::argument("no such algorithm")),
    };
    Ok(vm.string(hashed)?)
}

/// The hash of a password that Apache's `htpasswd -m` writes, with its prefix.
fn apr1(password: &[u8], salt: &[u8]) -> Vec<u8> {
    const ROUNDS: u32 = 1000;
    let salt = &salt[..salt.len().min(8)];
    let mut alternate = Md5::new();
    for part in [password, salt, password] {
        alternate.update(part);
    }
    let alternate = alternate.finalize();

    let mut first = Md5::new();
    for part in [password, b"$apr1$", salt] {
        first.update(part);
    }
    for chunk in password.chunks(alternate.len()) {
        first.update(&alternate[..chunk.len()]);
    }
    let mut rest = password.len();
    while rest > 0 {
        let octet = if rest & 1 == 1 { &[0] } else { &password[..1] };
        first.update(octet);
        rest >>= 1;
    }
    let mut result = first.finalize();

    for round in 0..ROUNDS {
        let is_odd = round % 2 == 1;
        let mut next = Md5::new();
        next.update(if is_odd { password } else { &result });
        if round % 3 != 0 {
            next.update(salt);
        }
        if round % 7 != 0 {
            next.update(password);
        }
        next.update(if is_odd { &result[..] } else { password });
        result = next.finalize();
    }

    let mut text = [b"$apr1$", salt, b"$"].concat();
    // The octets of the result, in groups of up to three.
    for group in [
        &[0, 6, 12][..],
        &[1, 7, 13],
        &[2, 8, 14],
        &[3, 9, 15],
        &[4, 10, 5],
        &[11],
    ] {
        const LETTERS: &[u8; 64] =
            b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let mut bits = group
            .iter()
            .fold(0, |bits, index| bits << 8 | usize::from(result[*index]));
        for _ in 0..=group.len() {
            text.push(LETTERS[bits & 63]);
            bits >>= 6;
        }
    }
    text
}

pub(crate) fn define(vm: &Vm) -> Result<(), Value> {
    let module = vm.module(None, "Digest")?;
    vm.define_singleton(module, "__digest", digest)?;
    let module = vm.module(None, "H2O")?;
    vm.define_singleton(module, "__crypt_apr1", |vm, call| {
        let [password, salt] = call.arguments.exactly()?;
        let [password, salt] = [text_argument(vm, password)?, text_argument(vm, salt)?];
        Ok(vm.string(apr1(&password, &salt))?)
    })
}
