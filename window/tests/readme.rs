//! What the README shows is what the examples are.

#[test]
fn the_program_of_the_readme_is_the_example() {
    let (_, program) = include_str!("../examples/hello.rs").split_once("\n\n").unwrap();
    assert!(include_str!("../../README.md").contains(program));
}
