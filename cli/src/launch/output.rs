//! A rank's output, line by line, with its number before each line.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// A line that is longer is passed on in pieces.
const LONGEST: usize = 64 << 10;

/// Passes everything on until the end. Lines of several ranks are never mixed; bytes are passed as they are.
pub(super) async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, prefix: String) {
    let mut read = vec![0; 16 << 10];
    let mut kept: Vec<u8> = Vec::new();
    let mut out = Vec::new();
    loop {
        let size = match from.read(&mut read).await {
            Ok(0) | Err(_) => break,
            Ok(size) => size,
        };
        kept.extend_from_slice(&read[..size]);
        out.clear();
        let mut start = 0;
        while let Some(end) = kept[start..].iter().position(|b| *b == b'\n') {
            out.extend_from_slice(prefix.as_bytes());
            out.extend_from_slice(&kept[start..=start + end]);
            start += end + 1;
        }
        kept.drain(..start);
        if kept.len() > LONGEST {
            line(&mut out, &prefix, &kept);
            kept.clear();
        }
        // An output that nobody takes any more does not stop the rank.
        let _ = to.write_all(&out).await;
        let _ = to.flush().await;
    }
    if !kept.is_empty() {
        out.clear();
        line(&mut out, &prefix, &kept);
        let _ = to.write_all(&out).await;
        let _ = to.flush().await;
    }
}

fn line(out: &mut Vec<u8>, prefix: &str, text: &[u8]) {
    out.extend_from_slice(prefix.as_bytes());
    out.extend_from_slice(text);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_line_gets_the_rank_and_no_byte_is_lost() {
        let mut out = Vec::new();
        pass(&b"one\n\ntwo\xff\0\nlast"[..], &mut out, "[3] ".into()).await;
        assert_eq!(out, b"[3] one\n[3] \n[3] two\xff\0\n[3] last\n");
        let long = vec![b'x'; LONGEST * 2 + 100];
        let mut out = Vec::new();
        pass(&long[..], &mut out, String::new()).await;
        assert_eq!(out.iter().filter(|b| **b == b'x').count(), long.len());
    }
}
