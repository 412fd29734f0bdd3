//! The proof of the job secret on a store's connection, and the cipher that follows from it.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Bytes that sealing adds to a message.
pub(super) const OVERHEAD: usize = 16;
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const PROLOGUE: &[u8] = b"transom 1 purpose 3";
/// The number of the messages, one from each side, that end the handshake; those after it are frames.
const PROOF_NUMBER: u64 = 0;
/// The number of the first message of frames, in each direction.
pub(super) const FIRST_NUMBER: u64 = PROOF_NUMBER + 1;
/// The longest message of a handshake.
const LONGEST: usize = 512;

/// The job secret.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// From bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// Why two sides did not meet.
#[derive(Debug)]
pub(super) enum Unmet {
    /// The other side has another secret.
    Refused(String),
    /// The connection was lost on the way; another try may do.
    Lost(String),
}

/// Seals and opens messages by their number.
#[derive(Debug)]
pub(super) struct Cipher(snow::StatelessTransportState);

impl Cipher {
    /// Adds the sealed message to `out`.
    pub(super) fn seal(&self, number: u64, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        let start = out.len();
        out.resize(start + plain.len() + OVERHEAD, 0);
        self.0.write_message(number, plain, &mut out[start..]).map_err(|e| e.to_string())?;
        Ok(())
    }

    /// Adds the opened message to `out`.
    pub(super) fn open(&self, number: u64, sealed: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        let start = out.len();
        out.resize(start + sealed.len(), 0);
        let size = self.0.read_message(number, sealed, &mut out[start..]).map_err(|e| e.to_string())?;
        out.truncate(start + size);
        Ok(())
    }
}

fn noise(secret: &Secret, initiator: bool) -> Result<snow::HandshakeState, Unmet> {
    let build = || -> Result<snow::HandshakeState, snow::Error> {
        let builder = snow::Builder::new(PATTERN.parse()?).psk(0, &secret.0)?.prologue(PROLOGUE)?;
        if initiator { builder.build_initiator() } else { builder.build_responder() }
    };
    build().map_err(broken)
}

/// The client's side.
pub(super) async fn initiate(stream: &mut TcpStream, secret: &Secret) -> Result<Cipher, Unmet> {
    let mut noise = noise(secret, true)?;
    let mut buffer = [0; LONGEST];
    let size = noise.write_message(&[], &mut buffer).map_err(broken)?;
    write(stream, &buffer[..size]).await?;
    let answer = read(stream).await?;
    noise.read_message(&answer, &mut buffer).map_err(|_| another_secret())?;
    let cipher = Cipher(noise.into_stateless_transport_mode().map_err(broken)?);
    let mut proof = Vec::new();
    cipher.seal(PROOF_NUMBER, &[], &mut proof).map_err(Unmet::Lost)?;
    write(stream, &proof).await?;
    let welcome = read(stream).await?;
    cipher.open(PROOF_NUMBER, &welcome, &mut Vec::new()).map_err(|_| another_secret())?;
    Ok(cipher)
}

/// The server's side, up to the client's proof; says with `spoke` that the first message was made with the secret.
///
/// The first message alone proves nothing, since it may be an old one that was recorded: the client proves with one more
/// that it has the keys of this connection.
pub(super) async fn respond(
    stream: &mut TcpStream,
    secret: &Secret,
    spoke: impl FnOnce(),
) -> Result<Cipher, Unmet> {
    let mut noise = noise(secret, false)?;
    let mut buffer = [0; LONGEST];
    let first = read(stream).await?;
    if noise.read_message(&first, &mut buffer).is_err() {
        write(stream, &[]).await?;
        return Err(another_secret());
    }
    spoke();
    let size = noise.write_message(&[], &mut buffer).map_err(broken)?;
    write(stream, &buffer[..size]).await?;
    let cipher = Cipher(noise.into_stateless_transport_mode().map_err(broken)?);
    let proof = read(stream).await?;
    cipher.open(PROOF_NUMBER, &proof, &mut Vec::new()).map_err(|_| another_secret())?;
    Ok(cipher)
}

/// Tells the client that it is in, so that it knows that it was not turned away after its proof.
pub(super) async fn welcome(stream: &mut TcpStream, cipher: &Cipher) -> Result<(), Unmet> {
    let mut welcome = Vec::new();
    cipher.seal(PROOF_NUMBER, &[], &mut welcome).map_err(Unmet::Lost)?;
    write(stream, &welcome).await
}

fn another_secret() -> Unmet {
    Unmet::Refused("it has another secret (give all ranks the same one)".into())
}

fn broken(error: snow::Error) -> Unmet {
    Unmet::Lost(format!("the handshake failed: {error}"))
}

async fn read(stream: &mut TcpStream) -> Result<Vec<u8>, Unmet> {
    let length = usize::from(stream.read_u16_le().await.map_err(lost)?);
    if length == 0 {
        return Err(another_secret());
    }
    if length > LONGEST {
        return Err(Unmet::Refused(format!("a first message of {length} bytes is none of this protocol")));
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await.map_err(lost)?;
    Ok(message)
}

async fn write(stream: &mut TcpStream, message: &[u8]) -> Result<(), Unmet> {
    let mut framed = (message.len() as u16).to_le_bytes().to_vec();
    framed.extend_from_slice(message);
    stream.write_all(&framed).await.map_err(lost)
}

fn lost(error: io::Error) -> Unmet {
    Unmet::Lost(match error.kind() {
        io::ErrorKind::UnexpectedEof => "the connection was closed before the secret was proven".into(),
        _ => error.to_string(),
    })
}
