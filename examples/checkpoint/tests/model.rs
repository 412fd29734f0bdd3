//! Model files that are the state, and files that cannot be.

#![allow(clippy::unwrap_used, reason = "a test fails that way")]

mod common;

use std::path::PathBuf;
use std::sync::Arc;

use common::*;
use transom_checkpoint::disk::RealDisk;
use transom_checkpoint::{Checkpoints, Dtype, Error, Model, Part};

/// A file of this text of a header and so many bytes of data.
fn file(dir: &TempDir, header: &str, data: usize) -> PathBuf {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend((0..data).map(|at| (at % 251) as u8));
    let path = dir.0.join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    path
}

fn open(path: impl Into<PathBuf>) -> Result<Model, Error> {
    Model::open(path, Arc::new(RealDisk::default()))
}

#[test]
fn a_model_is_loaded_by_any_number_of_shards_and_goes_through_a_checkpoint() {
    let dir = TempDir::new();
    let header = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"F16","shape":[5,3],"data_offsets":[0,30]},
        "a":{"dtype":"F32","shape":[3000,7],"data_offsets":[30,84030]},"c":{"dtype":"I8","shape":[],"data_offsets":[84030,84031]}}  "#;
    let model = open(file(&dir, header, 84_031)).unwrap();
    let layout = model.layout();
    let names: Vec<_> = layout.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["b", "a", "c"], "in the order of their bytes");
    let bytes: Vec<u8> = (0..84_031).map(|at| (at % 251) as u8).collect();
    let state = vec![bytes[..30].to_vec(), bytes[30..84_030].to_vec(), bytes[84_030..].to_vec()];
    for shards in 1..4 {
        for part in (0..shards).flat_map(|shard| layout.shard(shard, shards)) {
            let mut target = vec![0; layout.size(&part)];
            model.load([(part.clone(), target.as_mut_slice().into())]).unwrap();
            assert!(target == common::bytes(layout, &state, &part), "{part:?} of {shards}");
            let region = region(layout.size(&part));
            let target = region.slice(0..layout.size(&part)).unwrap();
            model.load([(part.clone(), target.clone().into())]).unwrap();
            let mut seen = vec![0; target.size()];
            target.read(0, &mut seen).unwrap();
            assert!(seen == common::bytes(layout, &state, &part));
        }
    }
    let to = Checkpoints::create(dir.0.join("c"), options(Arc::new(RealDisk::default()))).unwrap();
    save(&to, (1, "a"), layout, &state, 3).unwrap();
    assert!(load(&to.latest().unwrap().unwrap(), 2).unwrap() == state);
}

#[test]
fn files_that_are_no_models_are_refused_and_the_error_says_why() {
    let dir = TempDir::new();
    let tensor = |name: &str, dtype: &str, shape: &str, from: u64, to: u64| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let f32 = |name, from, to| tensor(name, "F32", &format!("[{}]", (to - from) / 4), from, to);
    for (header, data, why) in [
        (format!("{{{}}}", f32("a", 0, 16)), 8, "the file has 8 bytes of data"),
        (format!("{{{},{}}}", f32("a", 0, 16), f32("b", 8, 24)), 24, "overlap those of \"a\""),
        (format!("{{{},{}}}", f32("a", 0, 16), f32("b", 0, 16)), 16, "overlap those of \"a\""),
        (
            format!("{{{},{}}}", f32("a", 0, 8), f32("b", 16, 24)),
            24,
            "the 8 bytes before them belong to no tensor",
        ),
        (format!("{{{}}}", f32("a", 0, 8)), 24, "the last 16 bytes of data belong to no tensor"),
        (format!("{{{}}}", tensor("a", "F32", "[3]", 8, 4)), 24, "bytes 8 to 4"),
        (format!("{{{}}}", tensor("a", "F32", "[3]", 0, 8)), 8, "shape [3] of F32 does not have that size"),
        (
            format!("{{{}}}", tensor("a", "F32", "[4294967296,4294967296,4294967296]", 0, 8)),
            8,
            "does not have that size",
        ),
        (format!("{{{}}}", tensor("a", "F31", "[2]", 0, 8)), 8, "unknown variant `F31`"),
        (format!("{{{}}}", tensor("a", "F32", "[-2]", 0, 8)), 8, "invalid value"),
        (format!("{{{}}}", tensor("a", "F4", "[2,3]", 0, 3)), 3, "rows of 12 bits are not whole bytes"),
        (format!("{{{},{}}}", f32("a", 0, 8), f32("a", 8, 16)), 16, "it is there twice"),
        ("{}".into(), 0, "it has no tensors"),
        (r#"{"__metadata__":{}}"#.into(), 0, "it has no tensors"),
        ("[]".into(), 0, "does not begin with {"),
        (r#"{"a":1}"#.into(), 0, "its header cannot be read"),
        ("{\"a\":".into(), 0, "its header cannot be read"),
    ] {
        let error = open(file(&dir, &header, data)).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Model { .. }) && text.contains(why), "{header}: {text}");
        assert!(text.contains("model.safetensors"), "{text}");
    }
}

#[test]
fn files_of_other_kinds_are_refused_before_anything_is_believed() {
    let dir = TempDir::new();
    let path = dir.0.join("model.safetensors");
    let mut sparse = u64::MAX.to_le_bytes().to_vec();
    for (bytes, why) in [
        (&b""[..], "it has 0 bytes"),
        (b"PK\x03\x04", "it has 4 bytes"),
        (b"PK\x03\x04 and so on, as torch.save writes it", "at most 100000000 are read"),
        (b"\x09\0\0\0\0\0\0\0{}      ", "its header has 9 bytes, the file 16"),
        (b"\x08\0\0\0\0\0\0\0{\xff\xff}    ", "its header is no text"),
        (&sparse.split_off(0), "at most 100000000 are read"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let text = open(&path).unwrap_err().to_string();
        assert!(text.contains(why), "{text}");
    }
    assert!(open(&dir.0).unwrap_err().to_string().contains("not a file"));
    assert!(open(dir.0.join("none")).unwrap_err().to_string().contains("No such file"));
}

#[test]
fn types_smaller_than_a_byte_are_the_state_where_rows_are_whole_bytes() {
    let dir = TempDir::new();
    let header = r#"{"a":{"dtype":"F4","shape":[3,4],"data_offsets":[0,6]}}"#;
    let model = open(file(&dir, header, 6)).unwrap();
    assert_eq!(model.layout().tensors[0].dtype, Dtype::F4);
    let mut middle = [0; 2];
    model.load([(Part { tensor: 0, rows: 1..2 }, middle.as_mut_slice().into())]).unwrap();
    assert_eq!(middle, [2, 3]);
}

#[test]
fn what_the_fuzzer_found_is_refused() {
    // A text that is longer than the file is said to be.
    transom_checkpoint::fuzz_header(b"\x0d\0\0\0\0\0\0\0{     }\t  ");
}
