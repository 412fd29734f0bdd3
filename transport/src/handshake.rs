//! How two processes prove the job's secret to each other before anything that one says is believed by the other.
//!
//! Noise `NNpsk0` in three messages: the initiator's key, the responder's key and hello, the initiator's hello. The third
//! is under the session's keys, so that a replayed first message gives nothing. A welcome follows, empty and sealed: until
//! it comes, the initiator was not let in. Each message on the stream is a prefix of
//! 14 bytes (the magic word, the version, the job's public name, the size) and at most [`MOST`] bytes. Nothing here does
//! I/O but the two helpers for async streams at the end.

use std::fmt;

use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{HandshakeState, StatelessTransportState};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use transom_registry::{Error, Incarnation, Result};

use crate::hidden::{Hidden, scrubbed};
use crate::secret::{Secret, random};

const MAGIC: &[u8; 7] = b"transom";
/// Version of the protocol, of this message and of all that follow.
pub const VERSION: u8 = 1;
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Size of the prefix of a message.
pub const PREFIX: usize = 14;
/// Most bytes of a message behind its prefix.
pub const MOST: usize = 4096;
const MOST_ADDRESSES: usize = 8;

/// What a connection is for. A connection for one purpose is never taken for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// The control socket of `shm`.
    Shm = 1,
    /// A data connection of `tcp`.
    Tcp = 2,
    /// A client of a store.
    Store = 3,
    /// A transport of a program's own.
    Other = 255,
}

/// What each side says of itself, once the other has proven the secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Who it is; `None` for a client without a context.
    pub incarnation: Option<Incarnation>,
    /// Where it can be reached.
    pub addresses: Vec<String>,
    /// What it can do, by purpose.
    pub features: u32,
}

impl Hello {
    fn encode(&self, key: &[u8; 32]) -> Vec<u8> {
        let mut out = key.to_vec();
        out.extend(self.incarnation.map_or(0, Incarnation::as_u64).to_le_bytes());
        out.extend(self.features.to_le_bytes());
        let addresses: Vec<_> =
            self.addresses.iter().filter(|a| a.len() < 256).take(MOST_ADDRESSES).collect();
        out.push(addresses.len() as u8);
        for address in addresses {
            out.push(address.len() as u8);
            out.extend(address.as_bytes());
        }
        out
    }

    fn decode(bytes: &[u8]) -> Result<(Self, [u8; 32])> {
        fn take<'a>(rest: &mut &'a [u8], size: usize) -> Result<&'a [u8]> {
            let (head, tail) =
                rest.split_at_checked(size).ok_or_else(|| malformed("a hello is cut short"))?;
            *rest = tail;
            Ok(head)
        }
        let rest = &mut { bytes };
        let mut key = [0; 32];
        key.copy_from_slice(take(rest, 32)?);
        let mut word = [0; 8];
        word.copy_from_slice(take(rest, 8)?);
        let mut features = [0; 4];
        features.copy_from_slice(take(rest, 4)?);
        let count = usize::from(take(rest, 1)?[0]);
        if count > MOST_ADDRESSES {
            return Err(malformed(format!("{count} addresses are more than {MOST_ADDRESSES}")));
        }
        let mut addresses = Vec::with_capacity(count);
        for _ in 0..count {
            let size = usize::from(take(rest, 1)?[0]);
            let text =
                std::str::from_utf8(take(rest, size)?).map_err(|_| malformed("an address is not text"))?;
            addresses.push(text.to_owned());
        }
        if !rest.is_empty() {
            return Err(malformed(format!("a hello has {} bytes too many", rest.len())));
        }
        let hello = Self {
            incarnation: Incarnation::from_u64(u64::from_le_bytes(word)),
            addresses,
            features: u32::from_le_bytes(features),
        };
        Ok((hello, key))
    }
}

fn malformed(why: impl Into<String>) -> Error {
    Error::Malformed { what: "handshake", why: why.into() }
}

fn auth(why: &str) -> Error {
    Error::Auth { peer: "the peer".into(), why: why.into() }
}

fn noise(_: snow::Error) -> Error {
    // Whatever it was, nobody learns more.
    auth("the secret is not the job's")
}

/// A message with its prefix.
///
/// # Errors
/// [`Error::Malformed`] when it is larger than [`MOST`].
pub fn frame(secret: &Secret, body: &[u8]) -> Result<Vec<u8>> {
    let size = u16::try_from(body.len()).ok().filter(|s| usize::from(*s) <= MOST);
    let size = size.ok_or_else(|| malformed(format!("{} bytes are more than {MOST}", body.len())))?;
    let mut out = Vec::with_capacity(PREFIX + body.len());
    out.extend(MAGIC);
    out.push(VERSION);
    out.extend(secret.job()?);
    out.extend(size.to_le_bytes());
    out.extend(body);
    Ok(out)
}

/// Checks the prefix of a message and returns how many bytes follow it. 0: the other side belongs to another job and
/// says so.
///
/// # Errors
/// [`Error::Malformed`] for something that is not transom, or another version of it; [`Error::Auth`] for another job.
pub fn body_size(secret: &Secret, prefix: &[u8; PREFIX]) -> Result<usize> {
    if &prefix[..7] != MAGIC {
        return Err(malformed("this is not transom (a port scanner, or another service)"));
    }
    if prefix[7] != VERSION {
        return Err(malformed(format!("the peer speaks version {}, we speak {VERSION}", prefix[7])));
    }
    if prefix[8..12] != secret.job()? {
        return Err(auth(
            "another job answers there: its secret differs (give both sides the same file in TRANSOM_SECRET_FILE)",
        ));
    }
    let size = usize::from(u16::from_le_bytes([prefix[12], prefix[13]]));
    if size == 0 || size > MOST {
        return Err(malformed(format!("a message of {size} bytes is not in 1 to {MOST}")));
    }
    Ok(size)
}

fn builder<'a>(secret: &'a Secret, prologue: &'a [u8]) -> Result<snow::Builder<'a>> {
    let parameters = PATTERN.parse().map_err(|_| malformed("the noise pattern is not known"))?;
    let builder = snow::Builder::with_resolver(parameters, Box::new(Keeping));
    builder.psk(0, secret.as_bytes()).and_then(|b| b.prologue(prologue)).map_err(noise)
}

/// Takes the secret out of a handshake that has used it: it is in the first message, and in no other.
fn forget(noise: &mut HandshakeState) -> Result<()> {
    noise.set_psk(0, &[0; 32]).map_err(self::noise)
}

/// The default ciphers, with their keys in hidden memory.
struct Keeping;

impl CryptoResolver for Keeping {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        DefaultResolver.resolve_rng()
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        matches!(choice, CipherChoice::ChaChaPoly).then(|| Box::new(Kept(Hidden::new())) as _)
    }
}

/// The key of a cipher, which is made of it for each message.
struct Kept(Hidden);

impl Kept {
    fn with<T>(&self, f: impl FnOnce(&dyn Cipher) -> T) -> Option<T> {
        scrubbed(|| {
            let mut cipher = DefaultResolver.resolve_cipher(&CipherChoice::ChaChaPoly)?;
            cipher.set(self.0.get());
            let done = f(&*cipher);
            cipher.set(&[0; 32]);
            Some(done)
        })
    }
}

impl Cipher for Kept {
    fn name(&self) -> &'static str {
        "ChaChaPoly"
    }

    fn set(&mut self, key: &[u8; 32]) {
        self.0.get_mut().copy_from_slice(key);
    }

    fn encrypt(&self, nonce: u64, also: &[u8], plain: &[u8], out: &mut [u8]) -> usize {
        // It is built in; nothing sealed would be refused by the other side.
        self.with(|cipher| cipher.encrypt(nonce, also, plain, out)).unwrap_or(0)
    }

    fn decrypt(&self, nonce: u64, also: &[u8], sealed: &[u8], out: &mut [u8]) -> Result<usize, snow::Error> {
        self.with(|cipher| cipher.decrypt(nonce, also, sealed, out)).unwrap_or(Err(snow::Error::Decrypt))
    }
}

fn prologue(purpose: Purpose) -> [u8; 9] {
    let mut out = [0; 9];
    out[..7].copy_from_slice(MAGIC);
    out[7] = VERSION;
    out[8] = purpose as u8;
    out
}

/// Two sides that have proven the secret.
pub struct Session {
    noise: StatelessTransportState,
    sealed: u64,
    opened: u64,
    /// A key for what we send, known to both sides and nobody else.
    pub send_key: [u8; 32],
    /// A key for what we receive.
    pub receive_key: [u8; 32],
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session(***)")
    }
}

impl Session {
    /// Bytes that sealing adds.
    pub const TAG: usize = 16;

    fn new(noise: HandshakeState, send_key: [u8; 32], receive_key: [u8; 32]) -> Result<Self> {
        let noise = scrubbed(|| noise.into_stateless_transport_mode()).map_err(self::noise)?;
        Ok(Self { noise, sealed: 0, opened: 0, send_key, receive_key })
    }

    /// Encrypts the next message, of at most 65,519 bytes: each has a number of its own, so that order and count are
    /// proven too.
    ///
    /// # Errors
    /// [`Error::Malformed`] when it is too large.
    pub fn seal(&mut self, plain: &[u8]) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.seal_as(self.sealed, plain, &mut out)?;
        self.sealed += 1;
        Ok(out)
    }

    /// Decrypts the next message.
    ///
    /// # Errors
    /// [`Error::Auth`] when it is not the next one, or was changed.
    pub fn open(&mut self, sealed: &[u8]) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.open_as(self.opened, sealed, &mut out)?;
        self.opened += 1;
        Ok(out)
    }

    /// Adds a message, encrypted under this number, to `out`. For callers that count themselves: no number may be used
    /// twice. The initiator's number 0 is used by the handshake.
    ///
    /// # Errors
    /// As for [`Session::seal`].
    pub fn seal_as(&self, number: u64, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        out.resize(start + plain.len() + Self::TAG, 0);
        let written = self.noise.write_message(number, plain, &mut out[start..]);
        written.map(drop).map_err(|_| malformed(format!("a message of {} bytes is too large", plain.len())))
    }

    /// Adds the message that was encrypted under this number to `out`.
    ///
    /// # Errors
    /// As for [`Session::open`].
    pub fn open_as(&self, number: u64, sealed: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        out.resize(start + sealed.len(), 0);
        let read = self.noise.read_message(number, sealed, &mut out[start..]);
        out.truncate(start + read.map_err(|_| auth("a message was changed on its way"))?);
        Ok(())
    }
}

/// The side that connects.
#[derive(Debug)]
pub struct Initiator {
    secret: Secret,
    noise: HandshakeState,
}

impl Initiator {
    /// Begins; returns the first message.
    ///
    /// # Errors
    /// As for the ciphers: none in practice.
    pub fn new(secret: &Secret, purpose: Purpose) -> Result<(Self, Vec<u8>)> {
        let prologue = prologue(purpose);
        let mut out = vec![0; 256];
        let (noise, size) = scrubbed(|| {
            let mut noise = builder(secret, &prologue)?.build_initiator().map_err(self::noise)?;
            let size = noise.write_message(&[], &mut out).map_err(self::noise)?;
            forget(&mut noise)?;
            Ok((noise, size))
        })?;
        Ok((Self { secret: secret.clone(), noise }, frame(secret, &out[..size])?))
    }

    /// Takes the body of the second message; returns the session, the responder's hello and the third message.
    ///
    /// # Errors
    /// [`Error::Auth`], [`Error::Malformed`].
    pub fn finish(mut self, second: &[u8], hello: &Hello) -> Result<(Session, Hello, Vec<u8>)> {
        let mut out = vec![0; MOST];
        let size = scrubbed(|| self.noise.read_message(second, &mut out)).map_err(noise)?;
        let (theirs, receive_key) = Hello::decode(&out[..size])?;
        let send_key = random()?;
        let mut session = Session::new(self.noise, send_key, receive_key)?;
        let third = session.seal(&hello.encode(&send_key))?;
        let third = frame(&self.secret, &third)?;
        Ok((session, theirs, third))
    }
}

/// The side that was connected to.
#[derive(Debug)]
pub struct Responder {
    noise: HandshakeState,
    send_key: [u8; 32],
}

impl Responder {
    /// Takes the body of the first message; returns the second.
    ///
    /// # Errors
    /// [`Error::Auth`] when it does not prove the secret.
    pub fn new(secret: &Secret, purpose: Purpose, first: &[u8], hello: &Hello) -> Result<(Self, Vec<u8>)> {
        let prologue = prologue(purpose);
        let mut out = vec![0; MOST];
        let send_key = random()?;
        let (noise, size) = scrubbed(|| {
            let mut noise = builder(secret, &prologue)?.build_responder().map_err(self::noise)?;
            noise.read_message(first, &mut out).map_err(self::noise)?;
            forget(&mut noise)?;
            let size = noise.write_message(&hello.encode(&send_key), &mut out).map_err(self::noise)?;
            Ok((noise, size))
        })?;
        let second = frame(secret, &out[..size])?;
        Ok((Self { noise, send_key }, second))
    }

    /// Takes the body of the third message: only now the initiator has proven the secret.
    ///
    /// # Errors
    /// [`Error::Auth`], [`Error::Malformed`].
    pub fn finish(self, third: &[u8]) -> Result<(Session, Hello)> {
        let mut session = Session::new(self.noise, self.send_key, [0; 32])?;
        let hello = session.open(third)?;
        let (theirs, receive_key) = Hello::decode(&hello)?;
        session.receive_key = receive_key;
        Ok((session, theirs))
    }
}

/// What a responder answers to another job, so that the other side can tell.
///
/// # Errors
/// None in practice.
fn refusal(secret: &Secret) -> Result<Vec<u8>> {
    let mut out = frame(secret, &[0])?;
    out[12..14].copy_from_slice(&[0, 0]);
    out.truncate(PREFIX);
    Ok(out)
}

/// Reads the body of one message from an async stream.
///
/// # Errors
/// As for [`body_size`]; [`Error::Auth`] when the other side hangs up; [`Error::Io`].
///
/// # Cancel safety
/// None: drop the stream too.
pub async fn receive<S: AsyncRead + Unpin>(stream: &mut S, secret: &Secret) -> Result<Vec<u8>> {
    let mut prefix = [0; PREFIX];
    stream.read_exact(&mut prefix).await.map_err(|e| hung_up(&e))?;
    let mut body = vec![0; body_size(secret, &prefix)?];
    stream.read_exact(&mut body).await.map_err(|e| hung_up(&e))?;
    Ok(body)
}

const HUNG_UP: &str = "it hung up during the handshake (is the secret the same on both sides?)";

/// Whether the other side hung up without a word. Another job's says so first: it may have had no room for strangers.
#[must_use]
pub fn is_hang_up(error: &Error) -> bool {
    matches!(error, Error::Auth { why, .. } if why == HUNG_UP)
}

fn hung_up(error: &std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof
        | std::io::ErrorKind::ConnectionReset
        | std::io::ErrorKind::BrokenPipe => auth(HUNG_UP),
        _ => Error::Io { action: "shake hands".into(), errno: error.raw_os_error().unwrap_or(0) },
    }
}

/// The whole handshake of the side that connects. The caller sets the deadline.
///
/// # Errors
/// [`Error::Auth`], [`Error::Malformed`], [`Error::Io`].
///
/// # Cancel safety
/// None: drop the stream too.
pub async fn initiate<S>(
    stream: &mut S,
    secret: &Secret,
    purpose: Purpose,
    hello: &Hello,
) -> Result<(Session, Hello)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    initiate_if(stream, secret, purpose, hello, |_| Ok(())).await
}

/// As [`initiate`], if the other side is the right one. If it is not, it learns nothing of us: to it, we were a stranger.
///
/// # Errors
/// As for [`initiate`], and what `right` says.
///
/// # Cancel safety
/// As for [`initiate`].
pub async fn initiate_if<S>(
    stream: &mut S,
    secret: &Secret,
    purpose: Purpose,
    hello: &Hello,
    right: impl FnOnce(&Hello) -> Result<()>,
) -> Result<(Session, Hello)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (initiator, first) = Initiator::new(secret, purpose)?;
    stream.write_all(&first).await.map_err(|e| hung_up(&e))?;
    let second = receive(stream, secret).await?;
    let (mut session, theirs, third) = initiator.finish(&second, hello)?;
    right(&theirs)?;
    stream.write_all(&third).await.map_err(|e| hung_up(&e))?;
    session.open(&receive(stream, secret).await?)?;
    Ok((session, theirs))
}

/// Reads the body of the first message, and tells the other side when it belongs to another job.
///
/// # Errors
/// As for [`receive`].
///
/// # Cancel safety
/// None: drop the stream too.
pub async fn receive_first<S>(stream: &mut S, secret: &Secret) -> Result<Vec<u8>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let first = receive(stream, secret).await;
    if let Err(Error::Auth { .. }) = &first {
        let _ = stream.write_all(&refusal(secret)?).await;
    }
    first
}

/// The whole handshake of the side that was connected to. The caller sets the deadline.
///
/// # Errors
/// As for [`initiate`].
///
/// # Cancel safety
/// As for [`initiate`].
pub async fn respond<S>(
    stream: &mut S,
    secret: &Secret,
    purpose: Purpose,
    hello: &Hello,
) -> Result<(Session, Hello)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    respond_noting(stream, secret, purpose, hello, || ()).await
}

/// As [`respond`]; calls `spoke` when the first message was made with the secret, though it may be an old recording.
///
/// # Errors
/// As for [`initiate`].
///
/// # Cancel safety
/// As for [`initiate`]. Nothing is awaited behind the welcome: whoever got it was let in.
pub async fn respond_noting<S>(
    stream: &mut S,
    secret: &Secret,
    purpose: Purpose,
    hello: &Hello,
    spoke: impl FnOnce(),
) -> Result<(Session, Hello)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let first = receive_first(stream, secret).await?;
    let (responder, second) = Responder::new(secret, purpose, &first, hello)?;
    spoke();
    stream.write_all(&second).await.map_err(|e| hung_up(&e))?;
    let third = receive(stream, secret).await?;
    let (mut session, theirs) = responder.finish(&third)?;
    let welcome = frame(secret, &session.seal(&[])?)?;
    stream.write_all(&welcome).await.map_err(|e| hung_up(&e))?;
    Ok((session, theirs))
}

/// Feeds arbitrary bytes to a responder, for the fuzzer.
#[doc(hidden)]
pub fn fuzz_handshake(bytes: &[u8]) {
    let secret = Secret::from_bytes([7; 32]);
    if let Some((prefix, body)) = bytes.split_first_chunk::<PREFIX>() {
        let _ = body_size(&secret, prefix);
        let hello = Hello { incarnation: None, addresses: Vec::new(), features: 0 };
        let _ = Responder::new(&secret, Purpose::Tcp, body, &hello);
        let _ = Hello::decode(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(number: u64) -> Hello {
        Hello {
            incarnation: Incarnation::from_u64(number),
            addresses: vec!["tcp:127.0.0.1:4711".into(), "shm:/run/x".into()],
            features: 5,
        }
    }

    fn body<'a>(secret: &Secret, message: &'a [u8]) -> Result<&'a [u8]> {
        let (prefix, body) = message.split_first_chunk::<PREFIX>().unwrap();
        assert_eq!(body_size(secret, prefix)?, body.len());
        Ok(body)
    }

    #[test]
    fn both_sides_end_with_the_same_keys_and_know_each_other() {
        let secret = Secret::random().unwrap();
        let (initiator, first) = Initiator::new(&secret, Purpose::Tcp).unwrap();
        let (responder, second) =
            Responder::new(&secret, Purpose::Tcp, body(&secret, &first).unwrap(), &hello(2)).unwrap();
        let (mut ours, theirs, third) = initiator.finish(body(&secret, &second).unwrap(), &hello(1)).unwrap();
        assert_eq!(theirs, hello(2));
        let (mut other, theirs) = responder.finish(body(&secret, &third).unwrap()).unwrap();
        assert_eq!(theirs, hello(1));
        assert_eq!((ours.send_key, ours.receive_key), (other.receive_key, other.send_key));
        let sealed = ours.seal(b"first").unwrap();
        let next = ours.seal(b"second").unwrap();
        assert!(other.open(&next).is_err(), "out of order");
        assert_eq!(other.open(&sealed).unwrap(), b"first");
        assert!(other.open(&sealed).is_err(), "replayed");
    }

    #[test]
    fn every_changed_byte_of_every_message_is_noticed() {
        let secret = Secret::random().unwrap();
        for message in 0..3 {
            for at in 0..400 {
                let spoil = |m: &mut Vec<u8>| {
                    let there = at < m.len();
                    if there {
                        m[at] ^= 1 << (at % 8);
                    }
                    there
                };
                let run = || -> Result<bool> {
                    let (initiator, mut first) = Initiator::new(&secret, Purpose::Tcp)?;
                    if message == 0 && !spoil(&mut first) {
                        return Ok(false);
                    }
                    let take = |m: &[u8]| -> Result<Vec<u8>> {
                        let (prefix, rest) =
                            m.split_first_chunk::<PREFIX>().ok_or_else(|| malformed("short"))?;
                        let size = body_size(&secret, prefix)?;
                        rest.get(..size).map(<[u8]>::to_vec).ok_or_else(|| malformed("short"))
                    };
                    let (responder, mut second) =
                        Responder::new(&secret, Purpose::Tcp, &take(&first)?, &hello(2))?;
                    if message == 1 && !spoil(&mut second) {
                        return Ok(false);
                    }
                    let (_, _, mut third) = initiator.finish(&take(&second)?, &hello(1))?;
                    if message == 2 && !spoil(&mut third) {
                        return Ok(false);
                    }
                    responder.finish(&take(&third)?).map(|_| true)
                };
                assert!(!matches!(run(), Ok(true)), "message {message}, byte {at}");
            }
        }
    }

    #[test]
    fn a_wrong_secret_another_purpose_and_a_replay_give_no_session() {
        let secret = Secret::random().unwrap();
        let (_, first) = Initiator::new(&secret, Purpose::Tcp).unwrap();
        let first = body(&secret, &first).unwrap().to_vec();
        let other = Secret::random().unwrap();
        assert!(Responder::new(&other, Purpose::Tcp, &first, &hello(2)).is_err());
        assert!(Responder::new(&secret, Purpose::Store, &first, &hello(2)).is_err());
        // A replayed first message is answered, but its sender cannot make the third.
        let (replayed, second) = Responder::new(&secret, Purpose::Tcp, &first, &hello(2)).unwrap();
        assert!(replayed.finish(body(&secret, &second).unwrap()).is_err(), "reflected");
    }

    #[test]
    fn strangers_get_an_error_that_says_who_they_are() {
        let secret = Secret::random().unwrap();
        let said = |prefix: &[u8; PREFIX]| body_size(&secret, prefix).unwrap_err().to_string();
        assert!(said(b"GET / HTTP/1.1").contains("not transom"));
        assert!(said(&[0; PREFIX]).contains("not transom"));
        let mut good = [0; PREFIX];
        good.copy_from_slice(&frame(&secret, &[1]).unwrap()[..PREFIX]);
        assert_eq!(body_size(&secret, &good).unwrap(), 1);
        let mut version = good;
        version[7] = 9;
        assert!(said(&version).contains("version 9, we speak 1"));
        let mut job = good;
        job[8] ^= 1;
        assert!(said(&job).contains("another job"));
        for size in [0_u16, MOST as u16 + 1, u16::MAX] {
            let mut bomb = good;
            bomb[12..].copy_from_slice(&size.to_le_bytes());
            assert!(said(&bomb).contains("is not in 1 to"));
        }
    }

    #[test]
    fn two_async_sides_meet_and_two_jobs_do_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let secret = Secret::random().unwrap();
            let (mut a, mut b) = tokio::io::duplex(64);
            let (ours, theirs) = (hello(1), hello(2));
            let (one, two) = tokio::join!(
                initiate(&mut a, &secret, Purpose::Shm, &ours),
                respond(&mut b, &secret, Purpose::Shm, &theirs)
            );
            assert_eq!((one.unwrap().1, two.unwrap().1), (theirs.clone(), ours.clone()));
            let other = Secret::random().unwrap();
            let (mut a, mut b) = tokio::io::duplex(4096);
            let (one, two) = tokio::join!(
                initiate(&mut a, &secret, Purpose::Shm, &ours),
                respond(&mut b, &other, Purpose::Shm, &theirs)
            );
            assert!(one.unwrap_err().to_string().contains("another job"));
            assert!(two.unwrap_err().to_string().contains("another job"));
        });
    }
}
