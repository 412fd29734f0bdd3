//! The proof of the job secret on a store's connection, and the cipher that follows from it.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use transom_registry::Error;
use transom_transport::Secret;
use transom_transport::handshake::{self, Hello, Initiator, Purpose, Responder, Session};

/// Bytes that sealing adds to a message.
pub(super) const OVERHEAD: usize = Session::TAG;
/// The number of the messages, one from each side, that end the handshake; those after it are frames.
const PROOF_NUMBER: u64 = 0;
/// The number of the first message of frames, in each direction.
pub(super) const FIRST_NUMBER: u64 = PROOF_NUMBER + 1;

/// Why two sides did not meet.
#[derive(Debug)]
pub(super) enum Unmet {
    /// The other side has another secret, or is something else altogether.
    Refused(String),
    /// The connection was lost on the way; another try may do.
    Lost(String),
}

/// Seals and opens messages by their number.
#[derive(Debug)]
pub(super) struct Cipher(Session);

impl Cipher {
    /// Adds the sealed message to `out`.
    pub(super) fn seal(&self, number: u64, plain: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        self.0.seal_as(number, plain, out).map_err(|e| e.to_string())
    }

    /// Adds the opened message to `out`.
    pub(super) fn open(&self, number: u64, sealed: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        self.0.open_as(number, sealed, out).map_err(|e| e.to_string())
    }
}

/// A store's client and its server tell nothing of themselves.
const NOBODY: Hello = Hello { incarnation: None, addresses: Vec::new(), features: 0 };

/// The client's side.
pub(super) async fn initiate(stream: &mut TcpStream, secret: &Secret) -> Result<Cipher, Unmet> {
    let (initiator, first) = Initiator::new(secret, Purpose::Store).map_err(unmet)?;
    write(stream, &first).await?;
    let second = handshake::receive(stream, secret).await.map_err(unmet)?;
    let (session, _, third) = initiator.finish(&second, &NOBODY).map_err(unmet)?;
    write(stream, &third).await?;
    let welcome = handshake::receive(stream, secret).await.map_err(unmet)?;
    session.open_as(PROOF_NUMBER, &welcome, &mut Vec::new()).map_err(unmet)?;
    Ok(Cipher(session))
}

/// The server's side, up to the client's proof; says with `spoke` that the first message was made with the secret.
pub(super) async fn respond(
    stream: &mut TcpStream,
    secret: &Secret,
    spoke: impl FnOnce(),
) -> Result<Cipher, Unmet> {
    let first = handshake::receive_first(stream, secret).await.map_err(unmet)?;
    let (responder, second) = Responder::new(secret, Purpose::Store, &first, &NOBODY).map_err(unmet)?;
    spoke();
    write(stream, &second).await?;
    let third = handshake::receive(stream, secret).await.map_err(unmet)?;
    let (session, _) = responder.finish(&third).map_err(unmet)?;
    Ok(Cipher(session))
}

/// Tells the client that it is in, so that it knows that it was not turned away after its proof.
pub(super) async fn welcome(stream: &mut TcpStream, secret: &Secret, cipher: &Cipher) -> Result<(), Unmet> {
    let mut sealed = Vec::new();
    cipher.seal(PROOF_NUMBER, &[], &mut sealed).map_err(Unmet::Lost)?;
    write(stream, &handshake::frame(secret, &sealed).map_err(unmet)?).await
}

fn unmet(error: Error) -> Unmet {
    match error {
        // A server that is full hangs up on whom it does not know yet: another try may do.
        Error::Auth { ref why, .. } if why.contains("hung up") => Unmet::Lost(error.to_string()),
        Error::Io { .. } => Unmet::Lost(error.to_string()),
        other => Unmet::Refused(other.to_string()),
    }
}

async fn write(stream: &mut TcpStream, message: &[u8]) -> Result<(), Unmet> {
    stream.write_all(message).await.map_err(|e| Unmet::Lost(e.to_string()))
}
