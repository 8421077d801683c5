use super::*;

#[test]
fn the_name_of_a_connection_says_whose_it_is() {
    let list = "id=3 addr=10.0.0.7:5142 name=redlatch:5f-0c:web-3:4711:a:b=c:link age=9 idle=7 cmd=evalsha\n\
                id=4 addr=10.0.0.7:5143 name=redlatch:5f-0c:web-3:4711:a:b=c:watchdog age=9 idle=2 cmd=ping\n\
                id=5 addr=10.0.0.8:5144 name=redlatch:77:-:1:::link age=9 idle=0\n\
                id=6 addr=10.0.0.9:5145 name= age=9 idle=0\n\
                id=7 addr=10.0.0.9:5146 name=redlatch:odd age=9 idle=0\n\
                id=8 addr=10.0.0.9:5147 name=redlatch:78:host:pid:label:link age=9 idle=0\n";
    let processes = of_list(list);
    assert_eq!(processes.len(), 2);
    let one = &processes["5f-0c"];
    assert_eq!((&*one.host, one.pid, &*one.label), ("web-3", 4711, "a:b=c"));
    assert_eq!((&*one.address, one.idle.as_secs()), ("10.0.0.7:5142", 2));
    assert_eq!(
        one.to_string(),
        "pid 4711 on web-3 (10.0.0.7:5142, a:b=c, idle 2 s)"
    );
    assert_eq!(processes["77"].label, ":");
}
