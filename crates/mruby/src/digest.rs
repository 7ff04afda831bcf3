//! The algorithms of Ruby's `Digest`, whose classes are in `prelude/digest.rb`, and the hashes of password files, which
//! would take too long in Ruby.

use md5::Md5;
use sha1::Sha1;
use sha1::digest::Digest as _;
use sha2::{Sha256, Sha384, Sha512};

use crate::function::text_argument;
use crate::{Call, Leave, Value, Vm};

/// `Digest.__digest(algorithm, data)` in Ruby: the digest of `data`.
fn digest(vm: &Vm, call: &Call<'_>) -> Result<Value, Leave> {
    let [algorithm, data] = call.arguments.exactly()?;
    let data = text_argument(vm, data)?;
    let hashed = match &*text_argument(vm, algorithm)? {
        b"MD5" => Md5::digest(data).to_vec(),
        b"SHA1" => Sha1::digest(data).to_vec(),
        b"SHA256" => Sha256::digest(data).to_vec(),
        b"SHA384" => Sha384::digest(data).to_vec(),
        b"SHA512" => Sha512::digest(data).to_vec(),
        _ => {
            return Err(Leave::argument(
                "the digest algorithm is none of MD5, SHA1, SHA256, SHA384 and SHA512",
            ));
        }
    };
    Ok(vm.string(hashed)?)
}

pub(crate) fn define(vm: &Vm) -> Result<(), Value> {
    let module = vm.module(None, "Digest")?;
    vm.define_singleton(module, "__digest", digest)?;
    let module = vm.module(None, "H2O")?;
    vm.define_singleton(module, "__crypt_apr1", |vm, call| {
        let [password, salt] = call.arguments.exactly()?;
        let [password, salt] = [text_argument(vm, password)?, text_argument(vm, salt)?];
        // A password that is too long has no hash, so it is that of no user.
        match h2o_password::apr1(&password, &salt) {
            Some(hash) => Ok(vm.string(hash)?),
            None => Ok(Value::nil()),
        }
    })
}
