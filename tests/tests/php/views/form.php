<form method="post" action="/form" enctype="multipart/form-data">
<input name="who"> <input type="file" name="file"> <button>Send</button>
</form>
